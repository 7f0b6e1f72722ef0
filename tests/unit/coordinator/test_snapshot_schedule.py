"""When periodic snapshots are due, and what holds them back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from cedana_sched.coordinator.snapshot_schedule import RunningWorkload, SnapshotSchedule
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import INTERVAL, AfterCommit, Signal, Verdict, Victim, WorkloadRef
from cedana_sched.model.records import Checkpoint, CheckpointStep

POLICY = CheckpointPolicy(interval_seconds=600)
START = 10_000.0


def running(
    uid: str = "w1",
    node: str = "n1",
    *,
    policy: CheckpointPolicy = POLICY,
    gang: str | None = None,
    started_at: float | None = START,
    saved_at: float | None = None,
    frozen_seconds: float = 0.0,
) -> RunningWorkload:
    workload = WorkloadRef(uid, "bio", f"name-of-{uid}", node)
    return RunningWorkload(Victim(workload, Identity("bio", uid), policy, gang, started_at), saved_at, frozen_seconds)


def checkpoint_of(signal: Signal, number: int = 0, **fields: object) -> Checkpoint:
    """A checkpoint of a victim of the signal, being dumped."""
    victim = signal.victims[number]
    given = Checkpoint(
        uid=f"{signal.uid}.{victim.workload.uid}.1",
        signal_uid=signal.uid,
        adapter=signal.adapter,
        workload=victim.workload,
        identity=victim.identity,
        policy=victim.policy,
        gang=victim.gang,
        after_commit=signal.after_commit,
        reason=signal.reason,
        step=CheckpointStep.DUMPING,
        created_at=signal.observed_at,
        deadline=signal.observed_at + 600,
    )
    return replace(given, **fields)


def saved(signal: Signal, frozen_seconds: float = 1.0, number: int = 0) -> Checkpoint:
    at = signal.observed_at
    ready = {"step": CheckpointStep.READY, "snapshot": SnapshotRef(signal.victims[number].identity, 1)}
    times = {"frozen_at": at, "committed_at": at + frozen_seconds, "finished_at": at + frozen_seconds}
    return checkpoint_of(signal, number, **ready, **times)


def failed(signal: Signal, verdict: Verdict | None = Verdict.EVICT) -> Checkpoint:
    at = signal.observed_at
    return checkpoint_of(signal, step=CheckpointStep.FAILED, finished_at=at, verdict=verdict, failure="it cannot be")


class Calendar:
    """A schedule, and the current time."""

    def __init__(self, workloads: Sequence[RunningWorkload], now: float = START) -> None:
        self.schedule = SnapshotSchedule("pods")
        self.workloads = list(workloads)
        self.now = now

    def due(self) -> tuple[Signal, ...]:
        return self.schedule.find_due(self.workloads, self.now).signals

    def save_due(self) -> tuple[Signal, ...]:
        due = self.due()
        self.schedule.on_records_saved([saved(signal, frozen_seconds=0) for signal in due])
        return due

    def next(self) -> Signal:
        """Let time pass until one is due."""
        for _ in range(100):
            found = self.schedule.find_due(self.workloads, self.now)
            if found.signals:
                (signal,) = found.signals
                return signal
            assert found.next_at is not None
            assert found.next_at > self.now
            self.now = found.next_at
        pytest.fail("nothing is ever due")


def test_the_first_one_is_within_an_interval_and_the_next_one_follows_by_an_interval() -> None:
    calendar = Calendar([running()])
    first = calendar.next()
    assert START < first.observed_at <= START + 600
    assert (first.reason, first.after_commit) == (INTERVAL, AfterCommit.LEAVE_RUNNING)
    calendar.schedule.on_records_saved([saved(first)])
    assert calendar.next().observed_at == first.observed_at + 600


def test_a_due_snapshot_is_reported_once() -> None:
    calendar = Calendar([running()])
    calendar.next()
    assert calendar.due() == ()


def test_a_report_without_a_record_is_repeated() -> None:
    calendar = Calendar([running()])
    first = calendar.next()
    assert calendar.next().observed_at == first.observed_at + 30


def test_workloads_that_start_together_are_saved_at_different_times() -> None:
    workloads = [running(f"w{number}", f"n{number}") for number in range(200)]
    calendar = Calendar(workloads)
    assert calendar.due() == ()
    counts = []
    for minute in range(10):
        calendar.now = START + 60 * (minute + 1)
        counts.append(len(calendar.save_due()))
    assert sum(counts) == 200
    assert max(counts) < 40


def test_the_times_are_the_same_for_every_coordinator() -> None:
    assert Calendar([running()]).next().observed_at == Calendar([running()]).next().observed_at


def test_a_node_saves_one_at_a_time_and_rests_as_long_as_that_took() -> None:
    calendar = Calendar([running("w1", saved_at=START - 600), running("w2", saved_at=START - 600)])
    first = calendar.next()
    calendar.schedule.on_records_saved([checkpoint_of(first)])
    calendar.now += 20
    assert calendar.due() == ()
    calendar.schedule.on_records_saved([saved(first, frozen_seconds=20)])
    second = calendar.next()
    assert second.victims != first.victims
    assert second.observed_at == first.observed_at + 40


def test_other_nodes_do_not_wait_for_it() -> None:
    calendar = Calendar([running("w1", saved_at=START - 600), running("w2", "n2", saved_at=START - 600)])
    assert len(calendar.due()) == 2


def test_a_workload_is_frozen_for_a_share_of_its_time_at_most() -> None:
    calendar = Calendar([running()])
    first = calendar.next()
    calendar.schedule.on_records_saved([saved(first, frozen_seconds=60)])
    assert calendar.next().observed_at == first.observed_at + 1200


def test_the_share_counts_for_a_snapshot_before_the_restart_as_well() -> None:
    assert Calendar([running(saved_at=START, frozen_seconds=60)]).next().observed_at == START + 1200


def test_a_restarted_coordinator_continues_the_schedule() -> None:
    assert Calendar([running(saved_at=START - 100)]).next().observed_at == START + 500


def test_clock_that_is_set_back_delays_no_snapshot_by_more_than_an_interval() -> None:
    calendar = Calendar([running()], now=START + 36_000)
    ahead = calendar.next()
    calendar.schedule.on_records_saved([saved(ahead)])
    calendar.workloads = [running(saved_at=ahead.observed_at)]
    calendar.now = START + 3600
    signal = calendar.next()
    assert signal.observed_at <= START + 3600 + 600
    calendar.schedule.on_records_saved([saved(signal)])
    assert calendar.next().observed_at == signal.observed_at + 600


@pytest.mark.parametrize("began", [START, START + 36_000, None])
def test_times_from_before_a_restart_that_are_yet_to_come_delay_none(began: float | None) -> None:
    """The schedule is looked at often: a time that is counted from each look would never come."""
    calendar = Calendar([running(started_at=began, saved_at=START + 36_000)], now=START + 3600)
    while not (due := calendar.due()):
        calendar.now += 7
    (signal,) = due
    assert signal.observed_at <= START + 3600 + 607
    calendar.schedule.on_records_saved([saved(signal)])
    assert calendar.next().observed_at == signal.observed_at + 600


def test_what_is_overdue_after_a_restart_is_spread() -> None:
    workloads = [running(f"w{number}", f"n{number}", saved_at=START - 6000) for number in range(200)]
    calendar = Calendar(workloads)
    assert calendar.due() == ()
    counts = []
    for minute in range(10):
        calendar.now = START + 60 * (minute + 1)
        counts.append(len(calendar.save_due()))
    assert sum(counts) == 200
    assert max(counts) < 40


def test_nothing_begins_on_a_node_that_saves_for_an_eviction() -> None:
    calendar = Calendar([running("w1", saved_at=START - 600), running("w2", saved_at=START - 600)])
    eviction = Signal("s1", "kueue", (calendar.workloads[1].victim,), "Reclaim", START)
    calendar.schedule.on_records_saved([checkpoint_of(eviction)])
    assert calendar.due() == ()
    calendar.schedule.on_records_saved([checkpoint_of(eviction, step=CheckpointStep.READY, finished_at=START)])
    assert len(calendar.due()) == 1


def test_one_that_is_saved_and_stopped_is_due_once_it_is_thawed() -> None:
    calendar = Calendar([running(policy=POLICY)], now=START + 10_000)
    signal = Signal("s1", "kueue", (running().victim,), "Preempted", calendar.now)
    stopped = saved(signal)
    calendar.schedule.on_records_saved([stopped])
    assert calendar.due() == ()
    calendar.now += 5_000
    assert calendar.due() == ()
    calendar.schedule.on_records_saved([replace(stopped, eviction_cancelled=True)])
    calendar.due()  # what is overdue is spread over an interval
    calendar.now += 600
    assert len(calendar.due()) == 1


def test_each_failure_doubles_the_interval_until_one_is_saved() -> None:
    calendar = Calendar([running(saved_at=START)])
    first = calendar.next()
    calendar.schedule.on_records_saved([failed(first)])
    second = calendar.next()
    assert second.observed_at == first.observed_at + 1200
    calendar.schedule.on_records_saved([failed(second)])
    third = calendar.next()
    assert third.observed_at == second.observed_at + 2400
    calendar.schedule.on_records_saved([saved(third)])
    assert calendar.next().observed_at == third.observed_at + 600


def test_one_that_gave_way_to_an_eviction_is_due_at_once() -> None:
    calendar = Calendar([running(saved_at=START)])
    first = calendar.next()
    calendar.schedule.on_records_saved([failed(first, Verdict.NOT_NEEDED)])
    assert calendar.next().observed_at == first.observed_at


def test_a_gang_is_saved_as_one() -> None:
    calendar = Calendar([running("w1", gang="g"), running("w2", "n2", gang="g")])
    first = calendar.next()
    assert [one.workload.uid for one in first.victims] == ["w1", "w2"]
    calendar.schedule.on_records_saved([saved(first), saved(first, number=1)])
    assert len(calendar.next().victims) == 2


def test_a_backup_on_request_counts() -> None:
    calendar = Calendar([running(saved_at=START)])
    backup = Signal(
        "b1", "cli", (calendar.workloads[0].victim,), "UserRequest", START + 300, after_commit=AfterCommit.LEAVE_RUNNING
    )
    calendar.schedule.on_records_saved([saved(backup)])
    assert calendar.next().observed_at == START + 900


def test_nothing_runs_and_nothing_is_due() -> None:
    assert SnapshotSchedule("pods").find_due([], START).next_at is None
