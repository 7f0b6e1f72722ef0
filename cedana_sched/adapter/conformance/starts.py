"""Tests of starts and ends, reported by adapters of non-pod workloads; the coordinator watches pods itself."""

from __future__ import annotations

from cedana_sched.adapter.conformance.coordinator import running_coordinator
from cedana_sched.adapter.conformance.findings import expect, skip_unless_capable
from cedana_sched.adapter.conformance.stage import SchedulerCapability, Stage
from cedana_sched.adapter.contract import Ended, Starting


class Starts:
    """Starting and Ended."""

    async def test_a_start_is_reported_with_its_identity(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (running,) = await stage.start(deadline_seconds=123.0)
            if SchedulerCapability.STARTS in stage.lacks:
                await stage.wait_until_reported()
                reported = [report for report in coordinator.received if isinstance(report, Starting | Ended)]
                expect(
                    not reported,
                    f"{SchedulerCapability.STARTS}: declared to be lacking, and this was reported: {reported}",
                )
                return
            start = await coordinator.wait_for_start(running)
            expect(start.workload == running.workload, f"reported was {start.workload}, and it is {running.workload}")
            expect(start.identity == running.identity, f"reported was {start.identity}, and it is {running.identity}")
            seconds = start.policy.deadline_seconds
            expect(seconds == 123.0, f"its policy's deadline is {seconds:g} s, and should be 123 s")

    async def test_a_start_that_waits_is_reported_again_after_a_restart(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.STARTS, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            waiting = await stage.bind_workload()
            await coordinator.wait_for_start(waiting)
        async with running_coordinator(stage) as coordinator:
            await coordinator.wait_for_start(waiting)

    async def test_an_end_is_reported(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.STARTS, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (running,) = await stage.start()
            await stage.finish(running)
            ended = await coordinator.wait_for_end(running)
            expect(bool(ended.why), "`why` is for people, and empty")

    async def test_an_end_while_nobody_listened_is_reported(self, stage: Stage) -> None:
        skip_unless_capable(SchedulerCapability.STARTS, stage.lacks)
        async with running_coordinator(stage) as coordinator:
            (running,) = await stage.start()
            await coordinator.wait_for_start(running)
        await stage.finish(running)
        async with running_coordinator(stage) as coordinator:
            await coordinator.wait_for_end(running)

    async def test_who_is_not_opted_in_starts_and_ends_unreported(self, stage: Stage) -> None:
        async with running_coordinator(stage) as coordinator:
            (stranger,) = await stage.start(protected=False)
            await stage.finish(stranger)
            await stage.wait_until_reported()
            reported = coordinator.received
            expect(not reported, f"{stranger} is not opted in, and this was reported: {reported}")
