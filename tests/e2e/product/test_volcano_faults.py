"""Every part of Volcano dies at every phase of a preemption, and no work is lost or done twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
import pytest_asyncio
from _pytest.mark import ParameterSet

from cedana_sched.model.records import CheckpointStep, RestoreStep
from tests.cluster.addons.deployments import wait_available
from tests.cluster.addons.volcano import DEPLOYMENTS
from tests.cluster.addons.volcano import NAMESPACE as VOLCANO
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product import parts
from tests.e2e.product.counting import LARGE, begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import PHASES, all_at, reached, released_in_time
from tests.e2e.product.volcano_queues import completed, groups, reclaim, vcjob

pytestmark = pytest.mark.shape("volcano")

_PODS = 4
_PARTS = {
    "scheduler": "app=volcano-scheduler",
    "controllers": "app=volcano-controller",
    "admission": "app=volcano-admission",
}
_KILLS = {"deleted": parts.delete_all, "killed": parts.signal_all}
_ALWAYS = {"scheduler": "released", "controllers": "dumping"}


def _cases() -> Iterator[ParameterSet]:
    """Every part at every phase, in turn with its pod and without."""
    for start, part in enumerate(_PARTS):
        for phase, kill in zip(PHASES, itertools.islice(itertools.cycle(_KILLS), start, None), strict=False):
            marks = () if _ALWAYS.get(part) == phase else pytest.mark.exhaustive
            yield pytest.param(part, kill, phase, marks=marks)


@pytest_asyncio.fixture(loop_scope="session")
async def all_new(installed_with_volcano: Product, cluster: Cluster, api: Api) -> None:
    """None of Volcano's parts has died before: the kubelet lets each next start of one that has wait longer."""
    for selector in _PARTS.values():
        await parts.renew_all(api, VOLCANO, selector)
    await wait_available(cluster, api, VOLCANO, DEPLOYMENTS)


@pytest.mark.parametrize(("part", "kill", "phase"), list(_cases()))
async def test_dead_part_of_volcano_costs_no_work(
    part: str, kill: str, phase: str, namespace: Namespace, toolbox: str, all_new: None, cluster: Cluster, api: Api
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        work = counting(mebibytes=LARGE, counts=None)
        await namespace.apply(
            vcjob("md", "bio", namespace, toolbox, *work, pods=_PODS, env={"CEDANA_CHECKPOINT": "md"})
        )
        await begun(bio, *range(_PODS), counts=5)
        async with asyncio.TaskGroup() as group:
            group.create_task(reclaim(namespace, toolbox), name="ml")
            await reached(namespace, *PHASES[phase])
            await _KILLS[kill](cluster, api, VOLCANO, _PARTS[part])

        await enough(namespace, bio, "md", _PODS, completed=completed)
        await released_in_time(namespace)
        moved = [index for index in range(_PODS) if len(bio.pods[index]) > 1]
        assert len(moved) >= 2
        await all_at(namespace, "Checkpoint", CheckpointStep.READY, CheckpointStep.FAILED, count=len(moved))
        await all_at(namespace, "Restore", RestoreStep.ENDED, count=len(moved))
        await wait_available(cluster, api, VOLCANO, DEPLOYMENTS)  # who deletes a Queue asks them
