"""Pods of a Queue that protects all of its own."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject, Pod, PodSpec
from cedana_sched.model.objects import names
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_volcano.objects import GROUP_NAME, PodGroup, PodGroupSpec
from cedana_sched_volcano.pod_queues import PodQueueResolver
from cedana_sched_volcano.queue_opt_in import QueueOptIn
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.identity import replica_of
from cedana_sched_webhooks.opt_in import NOT_OURS

OWNER = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "name": "md",
    "uid": "1a2b3c4d-1",
    "controller": True,
}
QUEUES = {
    "bio": {names.PROTECT: "true", names.POLICY: "fast"},
    "default": {names.PROTECT: "true"},
    "ml": {},
    "unprotected": {names.POLICY: "fast"},
}
IN_BIO = {"scheduling.volcano.sh/queue-name": "bio"}
OF_JOB = {GROUP_NAME: "md-1", "volcano.sh/queue-name": "bio"}
"""As Volcano writes it on a vcjob's pods."""


def queue(name: str) -> PartialObject | None:
    return PartialObject(Metadata(name=name, annotations=QUEUES[name])) if name in QUEUES else None


def pod_queues(**groups: str) -> PodQueueResolver:
    """PodGroups of namespace `lab` by their names, each with its Queue."""
    known = {name.replace("_", "-"): PodGroup(Metadata(), PodGroupSpec(queue=of)) for name, of in groups.items()}
    return PodQueueResolver(queue, lambda name, namespace: known.get(name) if namespace == "lab" else None)


def pod(annotations: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    variables = fields.get("env", [])
    spec = {"schedulerName": fields.get("scheduler", "volcano"), "containers": [{"name": "main", "env": variables}]}
    return {
        "metadata": {"annotations": annotations or {}, "ownerReferences": fields.get("owners", [OWNER])},
        "spec": spec,
    }


async def answered(body: dict[str, Any], namespace: str = "lab", **groups: str) -> Answer:
    opt_in = QueueOptIn(pod_queues(**groups), ServedNamespaces(frozenset({"kube-system"})))
    return await opt_in.answer_pod_admission(Request(uid="1", namespace=namespace, object=body))


@pytest.mark.parametrize("said", [OF_JOB, IN_BIO])
async def test_a_pod_of_a_protected_queue_gets_its_owners_id_and_the_queues_policy(said: dict[str, str]) -> None:
    body = pod({**said, "mine": "x"})
    answer = await answered(body)
    assert apply_json_patch(body, answer.patch)["metadata"]["annotations"] == {
        **said,
        "mine": "x",
        names.ID: "md-1a2b3c4d",
        names.DERIVED_ID: "true",
        names.POLICY: "fast",
        names.QUEUE_POLICY: "fast",
    }


@pytest.mark.parametrize(
    "named", [{"annotations": {names.ID: "mine"}}, {"env": [{"name": "CEDANA_CHECKPOINT", "value": "mine"}]}]
)
async def test_a_pod_with_an_id_of_its_own_is_told_the_queues_policy(named: dict[str, Any]) -> None:
    own = {
        **IN_BIO,
        names.POLICY: "slow",
        names.QUEUE_POLICY: "slow",
        **named.pop("annotations", {}),
    }
    body = pod(own, **named)
    answer = await answered(body)
    assert answer.decision == "named"
    assert apply_json_patch(body, answer.patch)["metadata"]["annotations"] == {**own, names.QUEUE_POLICY: "fast"}


async def test_a_pod_without_a_queue_is_in_the_default_one_and_keeps_its_own_policy() -> None:
    body = pod({names.POLICY: "mine"})
    annotations = apply_json_patch(body, (await answered(body)).patch)["metadata"]["annotations"]
    assert annotations == {names.ID: "md-1a2b3c4d", names.DERIVED_ID: "true", names.POLICY: "mine"}


@pytest.mark.parametrize(
    "body",
    [
        pod({"scheduling.volcano.sh/queue-name": "ml"}),
        pod({"scheduling.volcano.sh/queue-name": "unknown"}),
        pod({names.ID: "mine"}),
        pod(scheduler="default-scheduler"),
        pod(env=[{"name": "CEDANA_CHECKPOINT", "value": "mine"}]),
        pod(env=[{"name": "CEDANA_CHECKPOINT", "value": ""}]),
    ],
    ids=["another queue", "no such queue", "named", "another scheduler", "asks itself", "refuses"],
)
async def test_other_pods_are_left_alone(body: dict[str, Any]) -> None:
    assert await answered(body) == NOT_OURS


async def test_system_namespaces_are_left_alone() -> None:
    assert await answered(pod(), "kube-system") == NOT_OURS


async def test_a_pod_that_nobody_makes_again_is_left_alone() -> None:
    assert await answered(pod(owners=[])) == Answer("alone")


async def test_an_id_leaves_room_for_the_tasks_name() -> None:
    body = pod(IN_BIO, owners=[{**OWNER, "name": "j" * 60}])
    body["metadata"]["labels"] = {"volcano.sh/task-spec": "worker", "volcano.sh/task-index": "1"}
    written = apply_json_patch(body, (await answered(body)).patch)
    replica = replica_of(written)
    assert replica is not None
    assert str(replica) == "j" * (63 - len("-1a2b3c4d-worker")) + "-1a2b3c4d-worker/1"


@pytest.mark.parametrize(
    ("annotations", "groups"),
    [
        ({**OF_JOB, "volcano.sh/queue-name": "ml"}, {"md_1": "bio"}),
        ({GROUP_NAME: "md-1"}, {"md_1": "bio"}),
        ({"scheduling.volcano.sh/queue-name": "ml"}, {"podgroup_1a2b3c4d_1": "bio"}),
        ({"volcano.sh/queue-name": "ml", **IN_BIO}, {}),
    ],
    ids=["a vcjob's", "made by somebody", "made for its controller", "not made yet"],
)
async def test_a_pod_is_in_the_queue_by_which_volcano_counts_it(
    annotations: dict[str, str], groups: dict[str, str]
) -> None:
    body = pod(annotations)
    written = apply_json_patch(body, (await answered(body, **groups)).patch)["metadata"]["annotations"]
    assert written[names.QUEUE_POLICY] == "fast"


@pytest.mark.parametrize("annotations", [OF_JOB, {**OF_JOB, **IN_BIO, names.ID: "mine"}])
async def test_a_pod_gets_nothing_of_a_queue_whose_name_it_only_bears(annotations: dict[str, str]) -> None:
    body = pod({**annotations, names.QUEUE_POLICY: "fast"})
    assert await answered(body, md_1="ml") == NOT_OURS
    assert QueueOptIn(pod_queues(md_1="ml"), ServedNamespaces(frozenset())).annotations_for(_there(body)) == {}
    assert QueueOptIn(pod_queues(md_1="bio"), ServedNamespaces(frozenset())).annotations_for(_there(body)) != {}


def _there(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "namespace": "lab"}}


@pytest.mark.parametrize(
    ("of", "namespace", "policy"),
    [
        ("bio", "lab", "fast"),
        ("bio", "elsewhere", None),
        ("default", "lab", None),
        ("", "lab", None),
        ("unprotected", "lab", None),
        ("gone", "lab", None),
    ],
)
def test_the_policy_of_a_pod_is_looked_up_by_its_group(of: str, namespace: str, policy: str | None) -> None:
    """And never by what the pod says of its queue."""
    metadata = Metadata(name="md-0", namespace=namespace, annotations={GROUP_NAME: "md-1", **IN_BIO})
    found = pod_queues(md_1=of)
    assert found.policy_of(Pod(metadata, PodSpec(scheduler_name="volcano"))) == policy
    assert found.policy_of(Pod(metadata, PodSpec(scheduler_name="default-scheduler"))) is None
