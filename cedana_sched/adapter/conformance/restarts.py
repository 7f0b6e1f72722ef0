"""Tests of restarts: adapters are killed at any instant, readers reconnect; no event is lost or duplicated."""

from __future__ import annotations

from cedana_sched.adapter.conformance.coordinator import Coordinator, running_coordinator, victims_of
from cedana_sched.adapter.conformance.findings import expect, skip_unless_capable
from cedana_sched.adapter.conformance.stage import SchedulerCapability, Stage
from cedana_sched.adapter.contract import Preempted
from cedana_sched.model.preemption import Verdict

_TURNS_BEFORE_DEATH = (1, 4, 16)
"""Turns of the event loop after the call of `release`."""


class Restarts:
    """Restart."""

    async def test_what_is_pending_is_reported_again_after_a_restart(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            before = await coordinator.wait_for_signal(victim)
        async with running_coordinator(stage) as coordinator:
            after = await coordinator.wait_for_signal(victim)
            expect(after.uid == before.uid, f"after a restart {before.uid} is called {after.uid}")
            expect(set(victims_of(after)) == set(victims_of(before)), "after a restart it has other victims")
            await coordinator.check_still_running(victim, although="its adapter was away for a moment only")

    async def test_what_is_pending_is_reported_again_to_a_reader_that_comes_back(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with stage.adapter() as adapter:
            first, second = Coordinator(stage, adapter), Coordinator(stage, adapter)
            async with first.reading_reports():
                (victim,) = await stage.start()
                await stage.preempt(victim)
                before = await first.wait_for_signal(victim)
            async with second.reading_reports():
                after = await second.wait_for_signal(victim)
            expect(after.uid == before.uid, f"to a consumer that restarts, {before.uid} is called {after.uid}")

    async def test_what_happened_while_nobody_listened_is_reported(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage):
            (victim,) = await stage.start()
            await stage.wait_until_reported()
        await stage.preempt(victim)
        async with running_coordinator(stage) as coordinator:
            signal = await coordinator.wait_for_signal(victim)
            await coordinator.release(signal, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(victim)

    async def test_a_victim_that_ended_while_nobody_listened_is_not_preempted_anew(self, stage: Stage) -> None:
        """An unreleased preemption may be reported again, with the same uid; a new uid would create another hold."""
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
        await stage.finish(victim)
        async with running_coordinator(stage) as coordinator:
            await stage.wait_until_reported()
            signals = [report.signal for report in coordinator.received if isinstance(report, Preempted)]
            reported = [one.uid for one in signals if victim.uid in victims_of(one)]
            anew = set(reported) - {signal.uid}
            expect(
                not anew, f"{victim} ended while there was no consumer, and after a restart was preempted again: {anew}"
            )
            await coordinator.release(signal, Verdict.NOT_NEEDED)
            (other,) = await stage.start()
            await stage.preempt(other)
            another = await coordinator.wait_for_signal(other, other_than={signal.uid})
            await coordinator.release(another, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(other)

    async def test_a_release_may_come_before_the_reports_are_read(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
        async with stage.adapter() as adapter:
            coordinator = Coordinator(stage, adapter)
            await coordinator.release(signal, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(victim)

    async def test_a_release_in_which_the_adapter_died_is_finished_after_a_restart(self, stage: Stage) -> None:
        for turns in _TURNS_BEFORE_DEATH:
            async with running_coordinator(stage) as coordinator:
                (victim,) = await stage.start()
                await stage.preempt(victim)
                signal = await coordinator.wait_for_signal(victim)
                release = await coordinator.decide(signal, Verdict.COMMITTED)
                await coordinator.interrupt_release_call(release, turns)
            async with running_coordinator(stage) as coordinator:
                await coordinator.deliver_release(release)
                await coordinator.check_final_eviction(victim)

    async def test_what_is_over_is_not_reported_after_a_restart(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await coordinator.release(signal, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(victim)
            await stage.wait_until_reported()
        async with running_coordinator(stage) as coordinator:
            await stage.wait_until_reported()
            reported = coordinator.preemptions()
            expect(not reported, f"{signal.uid} is released and over, and after a restart was reported: {reported}")
