"""Which jobs have an interval, and what a due snapshot does to its job."""

from __future__ import annotations

import pytest

from cedana_sched.coordinator.snapshot_schedule import SnapshotSchedule
from cedana_sched.model.errors import UsageError
from cedana_sched.model.preemption import INTERVAL, Signal, Verdict
from tests.unit.local.jobs.job_builders import TWO_GROUPS
from tests.unit.local.jobs.loop_bench import Bench

EVERY_MINUTE = TWO_GROUPS.replace("optIn = true", "optIn = true\ncheckpointPolicy = {intervalSeconds = 60}")


@pytest.fixture
def bench() -> Bench:
    return Bench(EVERY_MINUTE)


def due(bench: Bench) -> Signal:
    """The signal of the next snapshot that is due."""
    schedule = SnapshotSchedule("embedded")
    now = bench.time
    for _ in range(10):
        found = schedule.find_due(bench.loop.workloads_with_interval(), now)
        if found.signals:
            return found.signals[0]
        assert found.next_at is not None
        now = found.next_at
    pytest.fail("nothing is due")


async def test_only_opted_in_jobs_that_run_and_have_an_interval_are_saved(bench: Bench) -> None:
    await bench.running("sim")
    await bench.running("train", "ml")
    await bench.submit("queued", cpus="4")
    assert [one.victim.identity.id for one in bench.loop.workloads_with_interval()] == ["sim"]


async def test_a_due_snapshot_is_reported_and_its_work_counts_when_it_is_settled(bench: Bench) -> None:
    await bench.running("sim")
    bench.time += 40
    signal = due(bench)
    await bench.loop.take_periodic_snapshot(signal)
    assert [one.reason for one in bench.signals] == [INTERVAL]
    await bench.loop.on_snapshot_terminal(signal.uid, committed=True)
    (run,) = bench.job("sim").active_runs
    assert run.began_at is not None
    (one,) = bench.loop.workloads_with_interval()
    assert one.saved_at == pytest.approx(signal.observed_at)


async def test_a_job_that_is_preempted_meanwhile_is_not_saved_twice(bench: Bench) -> None:
    await bench.running("sim")
    signal = due(bench)
    await bench.loop.preempt("sim")
    await bench.loop.take_periodic_snapshot(signal)
    assert [one.reason for one in bench.signals] == ["UserRequest"]


async def test_a_checkpoint_on_request_does_not_wait_for_a_periodic_one(bench: Bench) -> None:
    await bench.running("sim")
    await bench.loop.take_periodic_snapshot(due(bench))
    await bench.loop.checkpoint("sim", leave_running=True)
    assert [one.reason for one in bench.signals] == [INTERVAL, "UserRequest"]
    with pytest.raises(UsageError, match="already"):
        await bench.loop.checkpoint("sim", leave_running=True)


async def test_a_gang_with_a_member_that_has_ended_is_saved_without_it(bench: Bench) -> None:
    await bench.running("mpi", replicas=2, cpus="1")
    signal = due(bench)
    await bench.end("mpi", 0, index=0)
    await bench.loop.take_periodic_snapshot(signal)
    assert bench.signals == []
    assert len(due(bench).victims) == 1


async def test_a_run_after_a_lost_one_says_so_and_one_after_a_preemption_does_not(bench: Bench) -> None:
    await bench.running("sim")
    await bench.end("sim", None, lost=True)
    assert [one.loss for one in bench.starting] == [None, "its processes were lost"]
    await bench.begin("sim", restored=True)
    await bench.loop.preempt("sim")
    await bench.release(Verdict.COMMITTED)
    assert [one.loss for one in bench.starting] == [None, "its processes were lost", None]
