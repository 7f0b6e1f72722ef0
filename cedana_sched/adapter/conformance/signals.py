"""Tests of signals: the right victims, exactly one uid, as early as the scheduler decides."""

from __future__ import annotations

from cedana_sched.adapter.conformance.coordinator import running_coordinator, victims_of
from cedana_sched.adapter.conformance.findings import expect, skip_unless_capable
from cedana_sched.adapter.conformance.stage import SchedulerCapability, Stage
from cedana_sched.model.preemption import AfterCommit, Verdict


class Signals:
    """Signals, identity, pods without opt-in, duplicate and late notifications."""

    async def test_a_preemption_is_reported(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            adapter = type(coordinator.adapter)
            expect(signal.adapter == adapter.name, f"the signal names {signal.adapter!r}, the adapter {adapter.name!r}")
            expect(victims_of(signal) == (victim.uid,), f"its victims are {victims_of(signal)}, not {victim.uid} alone")
            expect(bool(signal.uid and signal.reason), "a signal needs a uid and a reason, in the scheduler's words")
            expect(signal.observed_at > 0, "`observed_at` is in seconds since the epoch")
            expect(signal.after_commit is AfterCommit.STOP, "a preemption stops its victims: `after` is STOP")

    async def test_the_victim_is_named_as_it_runs(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            (reported,) = (await coordinator.wait_for_signal(victim)).victims
            expect(
                reported.workload == victim.workload,
                f"reported was {reported.workload}, and what runs is {victim.workload}",
            )

    async def test_the_victim_has_its_own_identity(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            (reported,) = (await coordinator.wait_for_signal(victim)).victims
            expect(
                reported.identity == victim.identity, f"reported was {reported.identity}, and it is {victim.identity}"
            )

    async def test_the_victim_has_its_own_policy(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start(deadline_seconds=123.0)
            await stage.preempt(victim)
            (reported,) = (await coordinator.wait_for_signal(victim)).victims
            seconds = reported.policy.deadline_seconds
            expect(seconds == 123.0, f"its policy's deadline is {seconds:g} s, and should be 123 s")

    async def test_who_is_not_opted_in_is_evicted_as_ever(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (stranger,) = await stage.start(protected=False)
            await stage.preempt(stranger)
            await coordinator.wait_within_patience(
                stage.wait_until_evicted(stranger), f"{stranger} is not opted in and was not evicted"
            )
            await stage.wait_until_reported()
            reported = coordinator.preemptions()
            expect(not reported, f"{stranger} is not opted in, and its preemption was reported: {reported}")

    async def test_what_the_scheduler_decides_twice_is_one_preemption(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await stage.repeat_current_state()
            await stage.wait_until_reported()
            reported = coordinator.preemptions()
            expect(reported == {signal.uid}, f"one preemption was reported under several uids: {reported}")
            expect(not coordinator.cancellations(), "a preemption was cancelled because its event came twice")

    async def test_late_news_of_what_is_over_begin_nothing(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
            await coordinator.release(signal, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(victim)
            await stage.repeat_current_state()
            await stage.wait_until_reported()
            reported = coordinator.preemptions() - {signal.uid}
            expect(not reported, f"the preemption {signal.uid} is over, and was reported again as {reported}")
            taken_back = coordinator.cancellations()
            expect(not taken_back, f"an eviction went through, and was reported as cancelled: {taken_back}")

    async def test_who_comes_back_is_the_same_and_is_preempted_anew(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.RETURN, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (victim,) = await stage.start()
            await stage.preempt(victim)
            first = await coordinator.wait_for_signal(victim)
            await coordinator.release(first, Verdict.COMMITTED)
            await coordinator.wait_until_evicted(victim)
            again = await coordinator.wait_within_patience(
                stage.wait_until_returned(victim), f"{victim} was evicted and did not start again"
            )
            expect(again.uid != victim.uid, f"two runs of a workload have one uid, {victim.uid}")
            await stage.preempt(again)
            second = await coordinator.wait_for_signal(again)
            expect(second.uid != first.uid, f"two preemptions have one uid, {first.uid}")
            identities = (first.victims[0].identity, second.victims[0].identity)
            expect(
                identities[0] == identities[1],
                f"it started again under another identity: {identities[0]}, {identities[1]}",
            )
