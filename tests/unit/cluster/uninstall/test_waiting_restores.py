"""Restores that only wait do not outlast the uninstallation, whatever they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cedana_sched.adapter.contract import Starting
from cedana_sched.cluster.uninstall.records_in_flight import RecordsInFlight
from cedana_sched.cluster.uninstall.waiting_restores import START_SECONDS, WaitingRestores
from cedana_sched.coordinator.core import PublishEvent, Reported
from cedana_sched.model.orders import FailWorkload, SnapshotFound, StartCold
from cedana_sched.model.policy import CheckpointPolicy, OnRestoreFailure
from cedana_sched.model.records import RestoreStep
from tests.unit.coordinator.core.core_builders import MD, POLICY, Told, victim, workload

WHY = "md-0 was deleted, and may still run on node n2, which is not ready"
UID = "restore.w1"


class Uninstallation:
    """A coordinator, and what the uninstallation posts to it."""

    def __init__(self, patience: float = 0.01, left: float = 60.0) -> None:
        self.told = Told()
        self.refused: asyncio.Queue[Reported] = asyncio.Queue()
        self.in_flight = RecordsInFlight()
        until = asyncio.get_running_loop().time() + START_SECONDS + left
        self.waiting = WaitingRestores(self.in_flight, self.refused.put_nowait, patience, until)

    def save(self) -> None:
        """All records are saved."""
        self.in_flight.on_records_saved(self.told.core.records(), ())
        self.waiting.on_records_saved(self.told.core.records(), ())

    def starts(self, predecessor: str | None, policy: CheckpointPolicy = POLICY) -> None:
        self.told.report(Starting(workload("w1"), MD, policy, predecessor=predecessor))
        self.save()

    async def refusal_of(self) -> Reported:
        async with asyncio.timeout(60):
            return await self.refused.get()


@pytest.fixture
async def uninstallation() -> AsyncIterator[Uninstallation]:
    made = Uninstallation()
    yield made
    made.waiting.close()


async def test_pod_whose_predecessor_may_still_run_starts_cold(uninstallation: Uninstallation) -> None:
    told = uninstallation.told
    uninstallation.starts(WHY)
    assert told.orders() == []
    told.tell(await uninstallation.refusal_of())
    assert told.orders() == [f"StartCold {UID}"]
    assert told.order(StartCold).why == f"the suite is being uninstalled, and {WHY}"
    (event,) = (one for one in told.said if isinstance(one, PublishEvent))
    assert (event.kind, WHY in event.text) == ("ColdStart", True)
    uninstallation.save()
    assert uninstallation.refused.empty()


async def test_pod_fails_if_its_policy_says_so(uninstallation: Uninstallation) -> None:
    uninstallation.starts(WHY, CheckpointPolicy(on_restore_failure=OnRestoreFailure.FAIL))
    uninstallation.told.tell(await uninstallation.refusal_of())
    assert WHY in uninstallation.told.order(FailWorkload).why


async def test_pod_whose_store_does_not_answer_is_not_waited_for(uninstallation: Uninstallation) -> None:
    uninstallation.starts(None)
    assert uninstallation.told.orders() == [f"FindSnapshot {UID}"]
    uninstallation.told.tell(await uninstallation.refusal_of())
    assert uninstallation.told.order(StartCold).why == "the suite is being uninstalled"


async def test_pod_that_is_restored_in_time_is_not_refused() -> None:
    uninstallation = Uninstallation(patience=60)
    uninstallation.starts(None)
    (timer,) = uninstallation.waiting._timers.values()
    uninstallation.told.tell(SnapshotFound(UID))
    uninstallation.save()
    assert uninstallation.told.step(UID) == RestoreStep.STARTING_COLD
    assert timer.cancelled()
    assert uninstallation.refused.empty()


async def test_pod_that_arrives_late_is_refused_in_time_to_start() -> None:
    uninstallation = Uninstallation(patience=3600, left=0.01)
    uninstallation.starts(WHY)
    assert (await uninstallation.refusal_of()).adapter == "kueue"


async def test_pod_waits_for_the_checkpoint_of_its_predecessor(uninstallation: Uninstallation) -> None:
    told = uninstallation.told
    told.preempt(victim("w0", node="n2"))
    uninstallation.starts(WHY)
    uninstallation.waiting._on_overdue(UID)
    uninstallation.save()
    assert uninstallation.refused.empty(), "the snapshot may be committed yet"
    told.frozen("s1.w0.1").committed("s1.w0.1").killed("s1.w0.1")
    uninstallation.save()
    told.tell(uninstallation.refused.get_nowait())
    assert told.orders() == [f"StartCold {UID}"]
