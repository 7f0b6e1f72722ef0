"""A tenant's pods for whose deletion there is no room wait; nobody else waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched_armada import preemption_tracker, unexplained_deletions
from cedana_sched_armada.job_of_pod import CARDINALITY, GANG
from cedana_sched_armada.job_pod_index import JobPodIndex
from tests.unit.adapters.armada.armada_builders import World, until
from tests.unit.adapters.armada.tenants_pods import his


def deleted(world: World, number: int, gang: str = "") -> Pod:
    annotations = {GANG: gang, CARDINALITY: "2"} if gang else {}
    return his(world, f"p{number}", f"u{number}", f"job{number}", annotations=annotations, ends_in=3600)


async def test_other_work_is_not_kept_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unexplained_deletions, "WORD_SECONDS", 0.05)
    monkeypatch.setattr(unexplained_deletions, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(preemption_tracker, "MOST_DOUBTS", 100)
    looks: list[str] = []
    look = JobPodIndex.pods_with_gang

    def counted(pods: JobPodIndex, job: str, namespace: str) -> Any:
        looks.append(job)
        return look(pods, job, namespace)

    monkeypatch.setattr(JobPodIndex, "pods_with_gang", counted)
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        for number in range(100):
            world.pods._put(deleted(world, number))
        await until(lambda: len(coordinator.adapter._ledger.cases) == 100)
        looks.clear()
        for number in range(100):
            world.pods._put(deleted(world, 10_000 + number, "g"))
        adapter = coordinator.adapter
        await until(lambda: len(adapter._preemptions._without_room.get("tenant-b", ())) == 100)
        await asyncio.sleep(3)  # in which they would be looked at again
        assert not looks
