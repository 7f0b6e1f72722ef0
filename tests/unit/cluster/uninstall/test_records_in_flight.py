"""Who removes the suite waits for what is under way, and says what that is."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from cedana_sched.cluster.uninstall import records_in_flight
from cedana_sched.cluster.uninstall.records_in_flight import RecordsInFlight, StillInFlightError
from cedana_sched.model.records import CheckpointStep, HoldStep
from tests.unit.cluster.coordinator.test_object_journal import checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD

DUMPING = checkpoint(1, CheckpointStep.DUMPING)


def _after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_nothing_is_waited_for_where_everything_rests() -> None:
    waits = RecordsInFlight()
    waits.on_records_saved((replace(HOLD, step=HoldStep.RELEASED), checkpoint(1, CheckpointStep.READY)), ())
    await waits.wait_ended(_after(10))
    assert waits.current_holds() == []


async def test_what_does_not_end_in_time_is_named() -> None:
    waits = RecordsInFlight()
    waits.on_records_saved((replace(HOLD, step=HoldStep.HOLDING), DUMPING), ())
    with pytest.raises(StillInFlightError, match="under way still: ") as told:
        await waits.wait_ended(_after(0))
    assert f"Checkpoint of pod {DUMPING.workload.namespace}/{DUMPING.workload.name}: Dumping" in told.value.message
    assert HOLD.held is not None
    assert f"PreemptionHold of {HOLD.held.kind} {HOLD.held.namespace}/{HOLD.held.name}: Holding" in told.value.message


async def test_many_are_counted() -> None:
    waits = RecordsInFlight()
    waits.on_records_saved(
        tuple(checkpoint(number, CheckpointStep.FROZEN) for number in range(records_in_flight.NAMED + 7)), ()
    )
    with pytest.raises(StillInFlightError, match=r"and 7 more"):
        await waits.wait_ended(_after(0))


async def test_wait_ends_with_the_last_of_them() -> None:
    waits = RecordsInFlight()
    waits.on_records_saved((replace(HOLD, step=HoldStep.HOLDING), DUMPING), ())
    async with asyncio.timeout(60):
        waiting = asyncio.create_task(waits.wait_ended(_after(10)))
        await asyncio.sleep(0)
        waits.on_records_saved((replace(HOLD, step=HoldStep.RELEASED),), ())
        await asyncio.sleep(0)
        assert not waiting.done()
        waits.on_records_saved((replace(DUMPING, step=CheckpointStep.READY, verdict=None),), ())
        await waiting
