"""Tests of held evictions: the wait, and the end by a release or by the scheduler's own deadline."""

from __future__ import annotations

from cedana_sched.adapter.conformance.coordinator import running_coordinator
from cedana_sched.adapter.conformance.findings import NonConformanceError, expect, skip_unless_capable
from cedana_sched.adapter.conformance.stage import SchedulerCapability, Stage
from cedana_sched.adapter.contract import HoldsEvictions
from cedana_sched.model.preemption import Release, Verdict


class Holds:
    """Hold, release, deadline."""

    async def test_an_eviction_waits_for_its_release(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            await coordinator.wait_for_signal(victim)
            if SchedulerCapability.HOLD in stage.lacks:
                why = f"{SchedulerCapability.HOLD}: declared to be lacking, and yet"
                expect(not isinstance(coordinator.adapter, HoldsEvictions), f"{why} the adapter has `hold`")
                await coordinator.wait_within_patience(
                    stage.wait_until_evicted(victim), f"{why} {victim} was not evicted"
                )
                return
            await coordinator.check_still_running(victim, although="it was held")

    async def test_a_hold_that_is_placed_twice_is_one(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            if isinstance(coordinator.adapter, HoldsEvictions):
                until = await coordinator.adapter.hold(signal)
                limits = f"hold lasts until {until}, before the preemption was seen ({signal.observed_at})"
                expect(until is None or until > signal.observed_at, limits)
            await stage.on_hold_created(signal)
            await coordinator.check_still_running(victim, although="it was held")
            await coordinator.release(signal, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(victim)

    async def test_a_victim_that_is_committed_is_evicted(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await coordinator.release(signal, Verdict.COMMITTED)
            await coordinator.check_final_eviction(victim)

    async def test_past_its_deadline_a_victim_is_evicted_without_a_snapshot(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await coordinator.release(signal, Verdict.EVICT)
            await coordinator.wait_until_evicted(victim)

    async def test_a_victim_that_is_to_be_kept_runs_on(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await coordinator.release(signal, Verdict.KEEP_RUNNING)
            if SchedulerCapability.KEEPING in stage.lacks:  # then the verdict has the effect of `Evict`
                await coordinator.wait_until_evicted(victim)
            else:
                await coordinator.check_still_running(victim, although="the verdict was to keep it running")

    async def test_a_repeated_release_is_harmless(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            release = await coordinator.release(signal, Verdict.EVICT)
            await coordinator.deliver_release(release)
            await coordinator.wait_until_evicted(victim)
            await coordinator.deliver_release(release)
            await stage.wait_until_reported()
            reported = coordinator.preemptions()
            expect(reported == {signal.uid}, f"after its release the preemption was reported again, as {reported}")

    async def test_a_release_of_an_unknown_signal_releases_nothing(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await coordinator.deliver_release(Release("forgotten", {"nobody": Verdict.COMMITTED}))
            await coordinator.check_still_running(victim, although="it was another preemption that was released")
            await coordinator.release(signal, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(victim)

    async def test_a_scheduler_that_cannot_be_called_is_called_later(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            release = await coordinator.decide(signal, Verdict.COMMITTED)
            async with stage.scheduler_outage():
                done = await coordinator.wait_within_patience(
                    coordinator.try_release_call(release), "release did not return"
                )
            if not done:  # else this scheduler needs no call
                await coordinator.deliver_release(release)
            await coordinator.wait_until_evicted(victim)

    async def test_the_schedulers_own_deadline_is_reported(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.DEADLINE, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            killed_at = await stage.preempt_with_deadline(victim)
            signal = await coordinator.wait_for_signal(victim)
            limits = [signal.not_after]
            if isinstance(coordinator.adapter, HoldsEvictions):
                limits.append(await coordinator.adapter.hold(signal))
            known = min((limit for limit in limits if limit is not None), default=None)
            if known is None or known > killed_at:
                message = f"it is killed at {killed_at}, and neither `not_after` nor `hold` says so: {known}"
                raise NonConformanceError(message)
