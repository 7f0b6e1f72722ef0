"""Pods of a Queue that protects all of its own."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.kube.objects import Metadata, PartialObject
from cedana_sched.model.objects import names
from cedana_sched.model.served import Served
from cedana_sched_volcano.queues import NOT_OURS, QueueOptIn
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.identity import replica_of
from tests.unit.webhooks.admission_builders import patched

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
}


def queue(name: str) -> PartialObject | None:
    return PartialObject(Metadata(name=name, annotations=QUEUES[name])) if name in QUEUES else None


def pod(annotations: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    variables = fields.get("env", [])
    spec = {"schedulerName": fields.get("scheduler", "volcano"), "containers": [{"name": "main", "env": variables}]}
    return {
        "metadata": {"annotations": annotations or {}, "ownerReferences": fields.get("owners", [OWNER])},
        "spec": spec,
    }


async def answered(body: dict[str, Any], namespace: str = "lab") -> Answer:
    opt_in = QueueOptIn(queue, Served(frozenset({"kube-system"})))
    return await opt_in.answer(Request(uid="1", namespace=namespace, object=body))


@pytest.mark.parametrize("key", ["volcano.sh/queue-name", "scheduling.volcano.sh/queue-name"])
async def test_a_pod_of_a_protected_queue_gets_its_owners_id_and_the_queues_policy(key: str) -> None:
    body = pod({key: "bio", "mine": "x"})
    answer = await answered(body)
    assert patched(body, answer.patch)["metadata"]["annotations"] == {
        key: "bio",
        "mine": "x",
        names.ID: "md-1a2b3c4d",
        names.DERIVED: "true",
        names.POLICY: "fast",
        names.QUEUE_POLICY: "fast",
    }


@pytest.mark.parametrize(
    "named", [{"annotations": {names.ID: "mine"}}, {"env": [{"name": "CEDANA_CHECKPOINT", "value": "mine"}]}]
)
async def test_a_pod_with_an_id_of_its_own_is_told_the_queues_policy(named: dict[str, Any]) -> None:
    own = {
        "volcano.sh/queue-name": "bio",
        names.POLICY: "slow",
        names.QUEUE_POLICY: "slow",
        **named.pop("annotations", {}),
    }
    body = pod(own, **named)
    answer = await answered(body)
    assert answer.decision == "named"
    assert patched(body, answer.patch)["metadata"]["annotations"] == {**own, names.QUEUE_POLICY: "fast"}


async def test_a_pod_without_a_queue_is_in_the_default_one_and_keeps_its_own_policy() -> None:
    body = pod({names.POLICY: "mine"})
    annotations = patched(body, (await answered(body)).patch)["metadata"]["annotations"]
    assert annotations == {names.ID: "md-1a2b3c4d", names.DERIVED: "true", names.POLICY: "mine"}


@pytest.mark.parametrize(
    "body",
    [
        pod({"volcano.sh/queue-name": "ml"}),
        pod({"volcano.sh/queue-name": "unknown"}),
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
    body = pod({"volcano.sh/queue-name": "bio"}, owners=[{**OWNER, "name": "j" * 60}])
    body["metadata"]["labels"] = {"volcano.sh/task-spec": "worker", "volcano.sh/task-index": "1"}
    written = patched(body, (await answered(body)).patch)
    replica = replica_of(written)
    assert replica is not None
    assert str(replica) == "j" * (63 - len("-1a2b3c4d-worker")) + "-1a2b3c4d-worker/1"
