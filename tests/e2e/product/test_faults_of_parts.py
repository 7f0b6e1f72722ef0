"""Every part of the product dies at every phase of a preemption, and no work is lost or done twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep, RestoreStep
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product import parts
from tests.e2e.product.counting import LARGE, begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import PHASES, all_at, reached, released_in_time
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import reclaim

_PODS = 4
_KILLS: dict[str, parts.Kill] = {"deleted": parts.delete_pods, "killed": parts.kill_processes}


_ALWAYS = {("coordinator", "committed")}
"""The others are exhaustive: agents are killed by `test_restarts_on_a_node.py`, and every part in a storm."""


def _cases() -> Iterator[ParameterSet]:
    """Every part at every phase, in turn with its pod and without."""
    for start, part in enumerate(parts.ALL):
        for phase, kill in zip(PHASES, itertools.islice(itertools.cycle(_KILLS), start, None), strict=False):
            marks = () if (part, phase) in _ALWAYS else pytest.mark.exhaustive
            yield pytest.param(part, kill, phase, marks=marks)


@pytest.mark.any_shape
@pytest.mark.parametrize(("part", "kill", "phase"), list(_cases()))
async def test_dead_part_costs_no_work(
    part: str, kill: str, phase: str, namespace: Namespace, toolbox: str, installed_with_kueue: Product,
    cluster: Cluster, api: Api,
) -> None:  # fmt: skip
    await parts.renew(api)
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(indexed_job("md", "bio", toolbox, *counting(mebibytes=LARGE, counts=None), pods=_PODS))
        await begun(bio, *range(_PODS), counts=5)
        reclaiming = asyncio.create_task(reclaim(namespace, toolbox))

        await reached(namespace, *PHASES[phase])
        await _KILLS[kill](cluster, api, part)

        await reclaiming
        await enough(namespace, bio, "md", _PODS)
        await released_in_time(namespace)
        await all_at(namespace, "Checkpoint", CheckpointStep.READY, CheckpointStep.FAILED, count=_PODS)
        await all_at(namespace, "Restore", RestoreStep.ENDED, count=_PODS)
        found = await api.objects(API_VERSION, "Checkpoint", namespace.name)
        ready = [one["spec"]["identity"]["index"] for one in found if one["status"]["step"] == CheckpointStep.READY]
        assert sorted(ready) == list(range(_PODS))
    await parts.whole(api)
