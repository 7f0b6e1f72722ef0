"""Who asks for protection has it, by a queue or by one variable; who does not is preempted as if we were not there."""

from __future__ import annotations

import asyncio

import pytest

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.api.waiting import is_gone
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.cluster.patience import patient
from tests.e2e.product.counting import ALL, BEGUN, COUNTS, begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.history import Eviction, of_ours
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim

pytestmark = pytest.mark.any_shape


async def test_job_that_asks_for_nothing_is_preempted_as_without_us(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, audit: Audit
) -> None:
    async with groups(namespace, check=None), Following.of(namespace, "md") as bio:
        await namespace.apply(indexed_job("md", "bio", toolbox, *counting(), pods=4))
        await begun(bio, *range(4))

        await reclaim(namespace, toolbox)
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))

        eviction = Eviction.of(audit, namespace.name, "md")
        assert not eviction.refused
        assert len(eviction.suspended) == 1
        assert of_ours(audit, namespace.name) == []
        for index in range(4):
            assert bio.lines(index)[-COUNTS:] == ALL, "it began anew"
            assert len(bio.lines(index)) > COUNTS


async def test_variable_alone_protects_in_a_queue_without_our_check(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    async with groups(namespace, check=None), Following.of(namespace, "md") as bio:
        asked = {CHECKPOINT_VARIABLE: "protein"}
        await namespace.apply(indexed_job("md", "bio", toolbox, *counting(), pods=4, env=asked))
        await begun(bio, *range(4))

        await reclaim(namespace, toolbox)
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))

        assert [bio.lines(index) for index in range(4)] == [ALL] * 4
        checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
        assert {one["spec"]["identity"]["id"] for one in checkpoints} == {"protein"}


async def test_job_made_anew_with_the_same_id_continues_from_its_newest_snapshot(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    asked = {CHECKPOINT_VARIABLE: "protein"}
    async with groups(namespace):
        async with Following.of(namespace, "md") as first:
            await namespace.apply(indexed_job("md", "bio", toolbox, *counting(), pods=4, env=asked))
            await begun(first, *range(4))
            await namespace.apply(_endless("train", "ml", toolbox))
            await namespace.wait("batch/v1", "Job", "md", lambda job: bool(job["spec"]["suspend"]), within=120)
            await namespace.pods("job=train", count=2)
            before = [first.lines(index) for index in range(4)]
        await namespace.delete("batch/v1", "Job", "md")
        await namespace.wait("batch/v1", "Job", "md", is_gone)

        async with Following.of(namespace, "md-again") as second:
            await namespace.delete("batch/v1", "Job", "train")
            await namespace.apply(indexed_job("md-again", "bio", toolbox, *counting(), pods=4, env=asked))
            await completed(namespace, "md-again")
            await asyncio.wait_for(second.read(), patient(60))

        for index in range(4):
            after = second.lines(index)
            assert before[index] + after == ALL
            assert len(before[index]) >= BEGUN


def _endless(name: str, queue: str, image: str) -> dict[str, object]:
    return indexed_job(name, queue, image, "python3", "-c", "import time; time.sleep(10_000)", pods=2)


async def test_deleted_pod_that_ignores_sigterm_has_its_owners_grace_and_no_more(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    asked = [{"name": CHECKPOINT_VARIABLE, "value": "protein"}]
    main = container(toolbox, "python3", "-c", "import time; time.sleep(10_000)", env=asked)  # process 1 ignores it
    await namespace.apply(pod("stubborn", main, terminationGracePeriodSeconds=2))
    await namespace.ready("stubborn")

    await namespace.delete("v1", "Pod", "stubborn")

    await namespace.wait("v1", "Pod", "stubborn", is_gone, within=30)
