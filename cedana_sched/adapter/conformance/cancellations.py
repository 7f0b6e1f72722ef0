"""Tests of cancellations: by the scheduler, by the job's owner, and by a victim that ends before its eviction."""

from __future__ import annotations

from cedana_sched.adapter.conformance.coordinator import coordinating
from cedana_sched.adapter.conformance.findings import expect, needs
from cedana_sched.adapter.conformance.stage import Power, Stage
from cedana_sched.model.preemption import Verdict


class Cancellations:
    """Cancellation."""

    async def test_a_preemption_that_is_taken_back_is_told(self, stage: Stage) -> None:
        needs(Power.CANCELLATION, stage.lacks)
        async with coordinating(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.signal_of(victim)
            await stage.take_back(victim)
            cancelled = await coordinator.cancellation_of(signal)
            expect(bool(cancelled.why), "`why` is for people, and empty")

    async def test_who_is_spared_runs_on(self, stage: Stage) -> None:
        needs(Power.CANCELLATION, stage.lacks)
        async with coordinating(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.signal_of(victim)
            await stage.take_back(victim)
            await coordinator.cancellation_of(signal)
            await coordinator.release(signal, Verdict.NOT_NEEDED)
            await coordinator.still_runs(victim, although="its preemption was cancelled")

    async def test_who_was_spared_is_preempted_anew(self, stage: Stage) -> None:
        needs(Power.CANCELLATION, stage.lacks)
        async with coordinating(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            first = await coordinator.signal_of(victim)
            await stage.take_back(victim)
            await coordinator.cancellation_of(first)
            await coordinator.release(first, Verdict.NOT_NEEDED)
            await stage.preempt(victim)
            second = await coordinator.signal_of(victim, other_than={first.uid})
            expect(second.uid not in coordinator.cancellations(), f"{second.uid} was not cancelled")
            await coordinator.release(second, Verdict.COMMITTED)
            await coordinator.evicted(victim)

    async def test_what_was_taken_back_while_nobody_listened_evicts_nobody(self, stage: Stage) -> None:
        """Reported after the restart, or on the release at the latest if the scheduler has left no trace."""
        needs(Power.CANCELLATION, stage.lacks)
        async with coordinating(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.signal_of(victim)
        await stage.take_back(victim)
        async with coordinating(stage) as coordinator:
            await stage.settle()
            if signal.uid not in coordinator.cancellations():
                await coordinator.release(signal, Verdict.COMMITTED)
                await coordinator.cancellation_of(signal)
            await coordinator.still_runs(victim, although="its preemption was cancelled")

    async def test_a_victim_that_ends_by_itself_holds_nobody_up(self, stage: Stage) -> None:
        needs(Power.HOLD, stage.lacks)
        async with coordinating(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.signal_of(victim)
            await stage.finish(victim)
            await stage.settle()
            await coordinator.release(signal, Verdict.NOT_NEEDED)
            (other,) = await stage.start()
            await stage.preempt(other)
            another = await coordinator.signal_of(other, other_than={signal.uid})
            await coordinator.release(another, Verdict.COMMITTED)
            await coordinator.evicted(other)

    async def test_a_workload_that_its_owner_gives_up_is_no_preemption(self, stage: Stage) -> None:
        async with coordinating(stage) as coordinator:
            (workload,) = await stage.start()
            await stage.give_up(workload)
            await coordinator.within(stage.evicted(workload), f"{workload} was given up by its owner and did not end")
            await stage.settle()
            told = coordinator.preemptions()
            expect(not told, f"{workload} was deleted by its owner, and that was reported as a preemption: {told}")

    async def test_a_victim_that_its_owner_gives_up_holds_nobody_up(self, stage: Stage) -> None:
        needs(Power.HOLD, stage.lacks)
        async with coordinating(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.signal_of(victim)
            await stage.give_up(victim)
            await stage.settle()
            await coordinator.release(signal, Verdict.NOT_NEEDED)
            await coordinator.within(stage.evicted(victim), f"{victim} was given up by its owner and did not end")
            await stage.settle()
            told = coordinator.preemptions() - {signal.uid}
            expect(not told, f"{victim} was deleted by its owner, and that was reported as a preemption: {told}")
