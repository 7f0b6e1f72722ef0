"""Snapshots that cannot be taken, or continued: nothing waits for ever, and everybody can read what happened."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from cedana_sched.model.objects.names import POLICY, RESTORE_CONTAINER, RESTORE_GATE
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.model.records import CheckpointStep, HoldStep, RestoreStep
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import ALL, COUNTS, counting, enough
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import COMPLETION_INDEX, Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import all_at, reached
from tests.e2e.product.policies import own_policy
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim
from tests.e2e.product.store_faults import damage_packs, unreachable

pytestmark = pytest.mark.any_shape

_PODS = 4


def _job(image: str, policy: str, *, mebibytes: int = 20, counts: int | None = COUNTS) -> Object:
    body = indexed_job("md", "bio", image, *counting(mebibytes=mebibytes, counts=counts), pods=_PODS)
    body["spec"]["template"]["metadata"]["annotations"] = {POLICY: policy}
    return body


async def _run(namespace: Namespace, body: Object, bio: Following) -> None:
    await namespace.apply(body)
    for index in range(_PODS):
        await asyncio.wait_for(bio.said(index, 10), patient(120))


async def test_unreachable_store_delays_an_eviction_no_longer_than_the_deadline(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, api: Api
) -> None:
    async with (
        groups(namespace), Following.of(namespace, "md") as bio, own_policy(namespace, deadlineSeconds=15) as policy,
    ):  # fmt: skip
        await _run(namespace, _job(toolbox, policy), bio)
        async with unreachable(api):
            await reclaim(namespace, toolbox)
            (hold,) = await all_at(namespace, "PreemptionHold", HoldStep.RELEASED)
        made, released, deadline = map(
            datetime.fromisoformat,
            (hold["spec"]["creationTime"], hold["status"]["releaseTime"], hold["status"]["deadline"]),
        )
        assert deadline <= made + timedelta(seconds=15)
        (message,) = await wait_for_messages(namespace, "md", "EvictionReleased", kind="Warning")
        assert f"{_PODS} evicted without a snapshot" in message
        assert released <= deadline or message.endswith("its deadline has passed"), "it waited for nothing else"
        for checkpoint in await all_at(namespace, "Checkpoint", CheckpointStep.FAILED, count=_PODS):
            assert checkpoint["status"]["message"]
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))
        for index in range(_PODS):
            lines = bio.lines(index)
            assert lines[-COUNTS:] == ALL, "it began anew"
            before = lines[:-COUNTS]
            assert before == ALL[: len(before)], "and had run until then"


async def test_program_that_ends_while_it_is_held_is_not_run_again(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, api: Api
) -> None:
    """A Job that is suspended a moment too early does not count what its pod has done."""
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await _run(namespace, _job(toolbox, "default"), bio)
        async with unreachable(api):
            await reclaim(namespace, toolbox)
            await completed(namespace, "md")  # the pods of train fit beside those that are left
        await asyncio.wait_for(bio.read(), patient(60))
        for index in range(_PODS):
            assert bio.lines(index) == ALL, f"index {index}"
            assert len(bio.pods[index]) == 1


async def test_job_that_comes_back_early_waits_for_its_snapshot_at_the_gate(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, api: Api
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await _run(namespace, _job(toolbox, "default", mebibytes=100, counts=None), bio)
        reclaiming = asyncio.create_task(reclaim(namespace, toolbox))
        await reached(namespace, "Checkpoint", CheckpointStep.FREEZING)
        async with unreachable(api):
            await namespace.kubectl("patch", "job", "md", "--type=merge", '--patch={"spec":{"suspend":true}}')
            await reclaiming
            gated = await namespace.pods("job-name=md", phase="Pending", count=_PODS, within=120)
            assert {gate["name"] for pod in gated for gate in pod["spec"]["schedulingGates"]} == {RESTORE_GATE}
        for pod in gated:  # until then the pods before them may run between two attempts to save them
            await namespace.ready(pod["metadata"]["name"], within=120)
        await enough(namespace, bio, "md", _PODS)


async def _damaged(namespace: Namespace, image: str, cluster: Cluster, api: Api) -> None:
    """The Job is preempted, its snapshots are spoilt, and it comes back."""
    await namespace.apply(indexed_job("train", "ml", image, "sleep", "3600", pods=2))
    await all_at(namespace, "Checkpoint", CheckpointStep.READY, count=_PODS)
    assert await damage_packs(cluster, api) > 0
    await namespace.delete("batch/v1", "Job", "train")


@pytest.mark.exhaustive  # the runtime handler shows it without a cluster
async def test_damaged_snapshot_is_followed_by_a_cold_start_that_everybody_sees(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await _run(namespace, _job(toolbox, "default"), bio)
        await _damaged(namespace, toolbox, cluster, api)
        await reached(namespace, "Restore", RestoreStep.RUNNING)
        restores = await all_at(namespace, "Restore", RestoreStep.RUNNING, count=_PODS)
        for restore in restores:
            status, pod = restore["status"], restore["spec"]["podRef"]["name"]
            assert status["cold"] is True
            assert status["message"] in "".join(await wait_for_messages(namespace, pod, "ColdStart", kind="Warning"))
            assert "cold" in await namespace.logs(pod, f"--container={RESTORE_CONTAINER}")
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))
        for index in range(_PODS):
            assert bio.lines(index)[-COUNTS:] == ALL, f"index {index}"


@pytest.mark.exhaustive  # the runtime handler shows it without a cluster
async def test_damaged_snapshot_fails_the_pod_where_the_policy_says_so(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api
) -> None:
    async with (
        groups(namespace),
        Following.of(namespace, "md") as bio,
        own_policy(namespace, onRestoreFailure=OnRestoreFailure.FAIL) as policy,
    ):
        await _run(namespace, _job(toolbox, policy), bio)
        lines = {index: len(bio.lines(index)) for index in range(_PODS)}
        await _damaged(namespace, toolbox, cluster, api)
        await namespace.wait("batch/v1", "Job", "md", has_condition("Failed"), within=120)
        failed = await namespace.pods("job-name=md", phase="Failed")
        assert await wait_for_messages(namespace, failed[0]["metadata"]["name"], "RestoreFailed", kind="Warning")
        for pod in failed:
            index = int(pod["metadata"]["annotations"][COMPLETION_INDEX])
            assert len(bio.lines(index)) >= lines[index]
            assert "0" not in bio.lines(index)[1:], "it did not begin anew"
