"""Tests of gangs: workloads frozen together, because none of them runs without the others."""

from __future__ import annotations

from cedana_sched.adapter.conformance.coordinator import Coordinator, coordinating, victims_of
from cedana_sched.adapter.conformance.findings import expect, needs
from cedana_sched.adapter.conformance.stage import Power, RunningWorkload, Stage
from cedana_sched.model.preemption import Signal, Verdict


class Gangs:
    """Gang."""

    async def test_a_gang_is_one_preemption(self, stage: Stage) -> None:
        needs(Power.GANGS, stage.lacks)
        async with coordinating(stage) as coordinator:
            members = await stage.start(members=2)
            signal = await _preempted(stage, coordinator, members)
            expected = {member.uid for member in members}
            expect(set(victims_of(signal)) == expected, f"{victims_of(signal)} go, and the gang is {expected}")
            gangs = {victim.gang for victim in signal.victims}
            expect(len(gangs) == 1 and None not in gangs, f"its members do not share one gang: {gangs}")
            told = {victim.workload.uid: victim.identity for victim in signal.victims}
            own = {member.uid: member.identity for member in members}
            expect(told == own, f"its members are reported as {told}, and are {own}")
            await stage.settle()
            uids = coordinator.preemptions()
            expect(uids == {signal.uid}, f"one gang was reported as several preemptions: {uids}")

    async def test_a_gang_waits_and_goes_as_a_whole(self, stage: Stage) -> None:
        needs(Power.GANGS, stage.lacks)
        async with coordinating(stage) as coordinator:
            members = await stage.start(members=2)
            signal = await _preempted(stage, coordinator, members)
            if Power.HOLD not in stage.lacks:
                for member in members:
                    await coordinator.still_runs(member, although="its gang was held")
            await coordinator.release(signal, Verdict.COMMITTED)
            await coordinator.evicted_for_good(*members)

    async def test_a_gang_goes_as_a_whole_after_a_restart(self, stage: Stage) -> None:
        needs(Power.GANGS, stage.lacks)
        needs(Power.HOLD, stage.lacks)
        async with coordinating(stage) as coordinator:
            members = await stage.start(members=2)
            before = await _preempted(stage, coordinator, members)
        async with coordinating(stage) as coordinator:
            after = await coordinator.signal_of(members[0])
            expect(after.uid == before.uid, f"after a restart {before.uid} is called {after.uid}")
            await coordinator.release(after, Verdict.COMMITTED)
            for member in members:
                await coordinator.evicted(member)

    async def test_a_gang_whose_scheduler_is_faster_than_its_adapter_goes_as_a_whole(self, stage: Stage) -> None:
        """If a webhook reads the decision, some members may be gone before `release` is called."""
        needs(Power.GANGS, stage.lacks)
        async with coordinating(stage) as coordinator:
            members = await stage.start(members=2)
            signal = await _preempted(stage, coordinator, members)
            release = await coordinator.decide(signal, Verdict.COMMITTED)
            await stage.settle()
            await coordinator.tell(release)
            await coordinator.evicted_for_good(*members)

    async def test_a_gang_whose_release_was_decided_before_a_restart_goes_as_a_whole(self, stage: Stage) -> None:
        needs(Power.GANGS, stage.lacks)
        needs(Power.HOLD, stage.lacks)
        async with coordinating(stage) as coordinator:
            members = await stage.start(members=2)
            signal = await _preempted(stage, coordinator, members)
            release = await coordinator.decide(signal, Verdict.COMMITTED)
            await stage.settle()
        async with coordinating(stage) as coordinator:
            await coordinator.tell(release)
            await coordinator.evicted_for_good(*members)

    async def test_who_is_alone_shares_no_gang_with_another_job(self, stage: Stage) -> None:
        async with coordinating(stage) as coordinator:
            gangs = []
            for _ in range(2):
                (victim,) = await stage.start()
                await stage.preempt(victim)
                signal = await coordinator.signal_of(victim)
                gangs.append(signal.victims[0].gang)
                await coordinator.release(signal, Verdict.COMMITTED)
                await coordinator.evicted(victim)
            shared = gangs[0] is not None and gangs[0] == gangs[1]
            expect(not shared, f"two independent jobs are one gang: {gangs[0]}")


async def _preempted(stage: Stage, coordinator: Coordinator, members: tuple[RunningWorkload, ...]) -> Signal:
    await stage.preempt(members[0])
    return await coordinator.signal_of(members[0])
