"""Pods of any controller, scheduled by Volcano in a Queue that protects its pods, find their identity as elsewhere."""

from __future__ import annotations

import pytest

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.client import Object
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.served_namespaces import EVERYWHERE
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_volcano.pod_queues import PodQueueResolver
from cedana_sched_volcano.queue_opt_in import QueueOptIn
from cedana_sched_webhooks.admission import Request
from cedana_sched_webhooks.identity import replica_of

PROTECTING = PartialObject(Metadata(name="default", annotations={names.PROTECT: "true"}))
UID = "1a2b3c4d-1"
JOBSET = {
    "jobset.sigs.k8s.io/jobset-name": "md",
    "jobset.sigs.k8s.io/replicatedjob-name": "worker",
    "jobset.sigs.k8s.io/job-index": "1",
    "batch.kubernetes.io/job-completion-index": "2",
}
LWS = {"leaderworkerset.sigs.k8s.io/group-index": "0", "leaderworkerset.sigs.k8s.io/worker-index": "3"}


def pod(kind: str | None, api_version: str = "apps/v1", labels: Object | None = None) -> Object:
    owner = {"apiVersion": api_version, "kind": kind, "name": "md", "uid": UID, "controller": True}
    metadata = {"name": "md-1", "labels": labels or {}, "ownerReferences": [owner] if kind else []}
    return {"metadata": metadata, "spec": {"schedulerName": "volcano", "containers": [{"name": "main"}]}}


async def admitted(body: Object) -> Object:
    """The pod after Volcano's webhook of ours."""
    opt_in = QueueOptIn(PodQueueResolver(lambda _: PROTECTING, lambda *_: None), EVERYWHERE)
    written: Object = apply_json_patch(
        body, (await opt_in.answer_pod_admission(Request("1", "lab", object=body))).patch
    )
    return written


@pytest.mark.parametrize(
    ("body", "by_chance", "identity"),
    [
        (pod("Job", "batch/v1", {"batch.kubernetes.io/job-completion-index": "2"}), None, "md-1a2b3c4d/2"),
        (pod("Job", "batch/v1", JOBSET), None, "md-1a2b3c4d/2"),
        (pod("ReplicaSet"), 7, "md-1a2b3c4d/7"),
        (pod("StatefulSet", labels={"apps.kubernetes.io/pod-index": "2"}), None, "md-1a2b3c4d/2"),
        (pod("StatefulSet", labels=LWS), None, "md-1a2b3c4d-0/3"),
    ],
    ids=["Job", "JobSet", "Deployment", "StatefulSet", "LeaderWorkerSet"],
)
async def test_pod_of_a_numbering_controller_is_protected(body: Object, by_chance: int | None, identity: str) -> None:
    assert str(replica_of(await admitted(body), by_chance)) == identity


async def test_pod_of_a_controller_that_numbers_none_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match=r"Unknown/md.*has labelled no pod with its number.*id of its own"):
        replica_of(await admitted(pod("Unknown", "example.com/v1")))


async def test_bare_pod_is_left_alone_unless_it_names_an_id() -> None:
    assert replica_of(await admitted(pod(None))) is None
    named = pod(None)
    named["metadata"]["annotations"] = {names.ID: "mine"}
    assert str(replica_of(await admitted(named))) == "mine/0"
