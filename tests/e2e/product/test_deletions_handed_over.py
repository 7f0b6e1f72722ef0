"""Pods of Kueue and of Volcano that a person deletes: their work goes on, as after an eviction by their scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION, ID, NOT_BY_SCHEDULER, NOT_PREEMPTED, PROTECT
from cedana_sched_volcano.objects import QUEUE_NAME
from tests.cluster.api.client import Object
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import BEGUN, begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.owners import LABEL, NAME, continued, counting_pod, deployment, plain_job, stateful_set
from tests.e2e.product.queues import QUEUE_LABEL
from tests.e2e.product.queues import groups as queues_of_kueue
from tests.e2e.product.volcano_queues import groups as queues_of_volcano
from tests.e2e.product.volcano_queues import vcjob

pytestmark = pytest.mark.exhaustive

_IGNORED: Final = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def job(image: str) -> Object:
    """One that does not count a saved pod as failed, and has no other chance."""
    return plain_job(image, podFailurePolicy={"rules": [_IGNORED]}, podReplacementPolicy="Failed")


async def delete_pod(namespace: Namespace, selector: str) -> None:
    await namespace.kubectl("delete", "pod", f"--selector={selector}", "--wait=false")


async def assert_handed_over(namespace: Namespace, audit: Audit) -> None:
    """Each checkpoint is of a deletion that the scheduler's adapter has handed over, and succeeded."""
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    assert [one["status"]["phase"] for one in checkpoints] == ["Ready"]
    holds = await namespace.api.objects(API_VERSION, "PreemptionHold", namespace.name)
    assert [one["spec"]["adapter"] for one in holds] == ["kubernetes"]
    handed = {"metadata": {"annotations": {NOT_PREEMPTED: NOT_BY_SCHEDULER}}}
    patches = [one.body for one in audit.writes(namespace=namespace.name) if (one.resource, one.code) == ("pods", 200)]
    assert [one for one in patches if isinstance(one, dict) and _has(one, handed)]


@pytest_asyncio.fixture(loop_scope="session")
async def kueue_queue(namespace: Namespace, kueue: None, release: Product) -> AsyncIterator[None]:
    """A queue of Kueue, beside the adapter that saves deleted pods."""
    await release.ensure(kueue={"enabled": True}, kubernetes={"enabled": True})
    async with queues_of_kueue(namespace, {"bio": "400m"}):
        yield


@pytest.mark.any_shape
@pytest.mark.parametrize("owner", [job, deployment, stateful_set])
async def test_pod_of_kueue_goes_on_in_another_pod(
    owner: Callable[[str], Object], namespace: Namespace, toolbox: str, kueue_queue: None, audit: Audit
) -> None:
    body = owner(toolbox)
    body["metadata"]["labels"] = {QUEUE_LABEL: "bio"}
    template = body["spec"]["template"]["metadata"]
    template["annotations"] = {ID: NAME}
    if body["kind"] == "Deployment":
        template["labels"] = {**template["labels"], QUEUE_LABEL: "bio"}
    async with counting_pod(namespace, body) as following:
        await delete_pod(namespace, f"{LABEL}={NAME}")
        await continued(namespace, following)
    await assert_handed_over(namespace, audit)


@pytest_asyncio.fixture(loop_scope="session")
async def volcano_queue(namespace: Namespace, volcano_that_reclaims: None, release: Product) -> AsyncIterator[None]:
    """A queue of Volcano that protects its pods, beside the adapter that saves deleted pods."""
    await release.ensure(volcano={"enabled": True}, kubernetes={"enabled": True})
    async with queues_of_volcano(namespace, annotations={PROTECT: "true"}):
        yield


@pytest.mark.shape("volcano")
async def test_pod_of_a_vcjob_goes_on_and_the_others_are_left_alone(
    namespace: Namespace, toolbox: str, volcano_queue: None, audit: Audit
) -> None:
    async with Following.of(namespace, "md") as following:
        await namespace.apply(vcjob("md", "bio", namespace, toolbox, *counting(counts=None), pods=2, cpu="100m"))
        await begun(following, 0, 1)

        await namespace.kubectl("delete", "pod", "md-sim-0", "--wait=false")

        await asyncio.wait_for(following.said(0, len(following.lines(0)) + BEGUN), patient(120))
        for index in (0, 1):
            lines = following.lines(index)
            assert lines == [str(number) for number in range(len(lines))], f"pod {index}"
        assert [len(following.pods[index]) for index in (0, 1)] == [2, 1]
    await assert_handed_over(namespace, audit)


@pytest.mark.shape("volcano")
async def test_pods_that_a_policy_restarts_begin_anew_together(
    namespace: Namespace, toolbox: str, volcano_queue: None
) -> None:
    policies = [{"event": "PodEvicted", "action": "RestartJob"}]
    body = vcjob(
        "md", "bio", namespace, toolbox, *counting(counts=None), pods=2, at_least=2, cpu="100m", policies=policies
    )
    async with Following.of(namespace, "md") as following:
        await namespace.apply(body)
        await begun(following, 0, 1)

        await namespace.kubectl("delete", "pod", "md-sim-0", "--wait=false")

        for index in (0, 1):
            await asyncio.wait_for(_began_anew(following, index), patient(120))
    assert await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name) == []


@pytest.mark.shape("volcano")
async def test_pod_of_a_deployment_of_volcano_goes_on_in_another_pod(
    namespace: Namespace, toolbox: str, volcano_queue: None, audit: Audit
) -> None:
    body = deployment(toolbox)
    body["spec"]["template"]["spec"]["schedulerName"] = "volcano"
    body["spec"]["template"]["metadata"]["annotations"] = {QUEUE_NAME: f"{namespace.name}-bio"}
    async with counting_pod(namespace, body) as following:
        await delete_pod(namespace, f"{LABEL}={NAME}")
        await continued(namespace, following)
    await assert_handed_over(namespace, audit)


def _has(body: Object, part: Object) -> bool:
    """Whether a body has at least these fields."""
    return all(
        _has(body.get(key) or {}, value) if isinstance(value, dict) else body.get(key) == value
        for key, value in part.items()
    )


async def _began_anew(following: Following, index: int) -> None:
    """Wait until the second pod of an index has counted from the beginning."""
    while len(by_pod := following.by_pod(index)) < 2 or not by_pod[1]:
        await following.said(index, len(following.lines(index)) + 1)
    assert following.by_pod(index)[1][0] == "0"
