"""Tests of gangs: workloads frozen together, because none of them runs without the others."""

from __future__ import annotations

from cedana_sched.adapter.conformance.coordinator import Coordinator, running_coordinator, victims_of
from cedana_sched.adapter.conformance.findings import expect, skip_unless_capable
from cedana_sched.adapter.conformance.stage import RunningWorkload, SchedulerCapability, Stage
from cedana_sched.model.preemption import Signal, Verdict


class Gangs:
    """Gang."""

    async def test_a_gang_is_one_preemption(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.GANGS, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            members = await stage.start(members=2)
            signal = await _preempt_gang(stage, coordinator, members)
            expected = {member.uid for member in members}
            expect(set(victims_of(signal)) == expected, f"{victims_of(signal)} go, and the gang is {expected}")
            gangs = {victim.gang for victim in signal.victims}
            expect(len(gangs) == 1 and None not in gangs, f"its members do not share one gang: {gangs}")
            reported = {victim.workload.uid: victim.identity for victim in signal.victims}
            own = {member.uid: member.identity for member in members}
            expect(reported == own, f"its members are reported as {reported}, and are {own}")
            await stage.wait_until_reported()
            uids = coordinator.preemptions()
            expect(uids == {signal.uid}, f"one gang was reported as several preemptions: {uids}")

    async def test_a_gang_waits_and_goes_as_a_whole(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.GANGS, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            members = await stage.start(members=2)
            signal = await _preempt_gang(stage, coordinator, members)
            if SchedulerCapability.HOLD not in stage.lacks:
                for member in members:
                    await coordinator.check_still_running(member, although="its gang was held")
            await coordinator.release(signal, Verdict.COMMITTED)
            await coordinator.check_final_eviction(*members)

    async def test_a_gang_goes_as_a_whole_after_a_restart(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.GANGS, stage.lacks)
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            members = await stage.start(members=2)
            before = await _preempt_gang(stage, coordinator, members)
        async with running_coordinator(stage) as coordinator:
            after = await coordinator.wait_for_signal(members[0])
            expect(after.uid == before.uid, f"after a restart {before.uid} is called {after.uid}")
            await coordinator.release(after, Verdict.COMMITTED)
            for member in members:
                await coordinator.wait_until_evicted(member)

    async def test_a_gang_whose_scheduler_is_faster_than_its_adapter_goes_as_a_whole(self, stage: Stage) -> None:
        """If a webhook reads the decision, some members may be gone before `release` is called."""
        skip_unless_capable(SchedulerCapability.GANGS, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            members = await stage.start(members=2)
            signal = await _preempt_gang(stage, coordinator, members)
            release = await coordinator.decide(signal, Verdict.COMMITTED)
            await stage.wait_until_reported()
            await coordinator.deliver_release(release)
            await coordinator.check_final_eviction(*members)

    async def test_a_gang_whose_release_was_decided_before_a_restart_goes_as_a_whole(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.GANGS, stage.lacks)
        skip_unless_capable(SchedulerCapability.HOLD, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            members = await stage.start(members=2)
            signal = await _preempt_gang(stage, coordinator, members)
            release = await coordinator.decide(signal, Verdict.COMMITTED)
            await stage.wait_until_reported()
        async with running_coordinator(stage) as coordinator:
            await coordinator.deliver_release(release)
            await coordinator.check_final_eviction(*members)

    async def test_who_is_alone_shares_no_gang_with_another_job(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            gangs = []
            for _ in range(2):
                (victim,) = await stage.start()
                await stage.preempt(victim)
                signal = await coordinator.wait_for_signal(victim)
                gangs.append(signal.victims[0].gang)
                await coordinator.release(signal, Verdict.COMMITTED)
                await coordinator.wait_until_evicted(victim)
            shared = gangs[0] is not None and gangs[0] == gangs[1]
            expect(not shared, f"two independent jobs are one gang: {gangs[0]}")


async def _preempt_gang(stage: Stage, coordinator: Coordinator, members: tuple[RunningWorkload, ...]) -> Signal:
    await stage.preempt(members[0])
    return await coordinator.wait_for_signal(members[0])
