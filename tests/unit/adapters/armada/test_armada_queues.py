"""Pods of queues that protect all of theirs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cedana_sched.eviction_holds.preemption_index import PreemptionIndex
from cedana_sched.kube.client import Api
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_armada.webhooks import PODS, ArmadaWebhooks
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.schedulers import ReplicaAccess, load
from tests.unit.adapters.armada.armada_builders import World

JOB = "01k0abcdefghjkmnpqrstvwxyz"
NOT_OURS = Answer("not-ours")


def pod(queue: str = "bio", *, job: str = JOB, annotations: dict[str, str] | None = None, **env: str) -> dict[str, Any]:
    labels = {"armada_queue_id": queue, **({"armada_job_id": job} if job else {})}
    variables = [{"name": name, "value": value} for name, value in env.items()]
    return {
        "metadata": {"labels": labels, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "env": variables}]},
    }


def connected(**section: Any) -> ArmadaWebhooks:
    served = ServedNamespaces(frozenset({"kube-system"}))
    return ArmadaWebhooks.connect(ReplicaAccess(cast("Api", None), PreemptionIndex(), served, section))


async def answered(body: dict[str, Any], namespace: str = "lab", **section: Any) -> Answer:
    return await connected(**section).handlers()[PODS](Request(uid="1", namespace=namespace, object=body))


async def test_a_pod_of_a_protected_queue_gets_its_jobs_id_which_is_no_derived_one() -> None:
    body = pod(annotations={"mine": "x"})
    answer = await answered(body, queues=["bio"])
    assert apply_json_patch(body, answer.patch)["metadata"]["annotations"] == {"mine": "x", names.ID: JOB}


@pytest.mark.parametrize(
    "body",
    [
        pod("ml"),
        pod(job=""),
        pod(annotations={names.ID: "the-first-job"}),
        pod(CEDANA_CHECKPOINT="mine"),
        pod(CEDANA_CHECKPOINT=""),
    ],
    ids=["another queue", "not Armada's", "resubmitted", "named", "refuses"],
)
async def test_other_pods_are_left_alone(body: dict[str, Any]) -> None:
    assert await answered(body, queues=["bio"]) == NOT_OURS


async def test_without_queues_and_in_system_namespaces_nobody_is_asked() -> None:
    assert await answered(pod()) == NOT_OURS
    assert await answered(pod(), "kube-system", queues=["bio"]) == NOT_OURS


def test_settings_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(UsageError, match=r"armada\.queues"):
        connected(queues="bio")


def test_it_is_found_under_the_adapters_name() -> None:
    assert load("armada") is ArmadaWebhooks


def test_the_adapter_gives_the_same_to_pods_that_no_webhook_has_seen() -> None:
    world = World()
    world.address, world.settings = "armada:50051", {"queues": ["bio"]}
    opted_in = world.adapter().opt_in_annotations
    assert opted_in(pod()) == {names.ID: JOB}
    assert [opted_in(one) for one in (pod("ml"), pod(job=""), pod(CEDANA_CHECKPOINT=""))] == [{}, {}, {}]
