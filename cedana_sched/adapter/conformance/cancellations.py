"""Tests of cancellations: by the scheduler, by the job's owner, and by a victim that ends before its eviction."""

from __future__ import annotations

from cedana_sched.adapter.conformance.coordinator import running_coordinator
from cedana_sched.adapter.conformance.findings import expect, skip_unless_capable
from cedana_sched.adapter.conformance.stage import SchedulerCapability, Stage
from cedana_sched.model.preemption import Verdict


class Cancellations:
    """Cancellation."""

    async def test_a_cancelled_preemption_is_reported(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.CANCELLATION, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await stage.take_back(victim)
            cancelled = await coordinator.wait_for_cancellation(signal)
            expect(bool(cancelled.why), "`why` is for people, and empty")

    async def test_who_is_spared_runs_on(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.CANCELLATION, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await stage.take_back(victim)
            await coordinator.wait_for_cancellation(signal)
            await coordinator.release(signal, Verdict.NOT_NEEDED)
            await coordinator.check_still_running(victim, although="its preemption was cancelled")

    async def test_who_was_spared_is_preempted_anew(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.CANCELLATION, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            first = await coordinator.wait_for_signal(victim)
            await stage.take_back(victim)
            await coordinator.wait_for_cancellation(first)
            await coordinator.release(first, Verdict.NOT_NEEDED)
            await stage.preempt(victim)
            second = await coordinator.wait_for_signal(victim, other_than={first.uid})
            expect(second.uid not in coordinator.cancellations(), f"{second.uid} was not cancelled")
            await coordinator.release(second, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(victim)

    async def test_what_was_taken_back_while_nobody_listened_evicts_nobody(self, stage: Stage) -> None:
        """Reported after the restart, or on the release at the latest if the scheduler has left no trace."""
        skip_unless_capable(SchedulerCapability.CANCELLATION, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
        await stage.take_back(victim)
        async with running_coordinator(stage) as coordinator:
            await stage.wait_until_reported()
            if signal.uid not in coordinator.cancellations():
                await coordinator.release(signal, Verdict.COMMITTED)
                await coordinator.wait_for_cancellation(signal)
            await coordinator.check_still_running(victim, although="its preemption was cancelled")

    async def test_a_victim_that_ends_by_itself_holds_nobody_up(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await stage.finish(victim)
            await stage.wait_until_reported()
            await coordinator.release(signal, Verdict.NOT_NEEDED)
            (other,) = await stage.start()
            await stage.preempt(other)
            another = await coordinator.wait_for_signal(other, other_than={signal.uid})
            await coordinator.release(another, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(other)

    async def test_a_workload_that_its_owner_gives_up_is_no_preemption(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (workload,) = await stage.start()
            await stage.give_up(workload)
            await coordinator.wait_within_patience(
                stage.wait_until_evicted(workload), f"{workload} was given up by its owner and did not end"
            )
            await stage.wait_until_reported()
            reported = coordinator.preemptions()
            expect(
                not reported, f"{workload} was deleted by its owner, and that was reported as a preemption: {reported}"
            )

    async def test_a_victim_that_its_owner_gives_up_holds_nobody_up(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await stage.give_up(victim)
            await stage.wait_until_reported()
            await coordinator.release(signal, Verdict.NOT_NEEDED)
            await coordinator.wait_within_patience(
                stage.wait_until_evicted(victim), f"{victim} was given up by its owner and did not end"
            )
            await stage.wait_until_reported()
            reported = coordinator.preemptions() - {signal.uid}
            expect(
                not reported, f"{victim} was deleted by its owner, and that was reported as a preemption: {reported}"
            )
