"""The journal gives back what it was given, in whole steps, and refuses what it cannot read."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from cedana_sched.local.jobs import journal as journal_module
from cedana_sched.local.jobs.job import Run, TransitionCause, apply_transition
from cedana_sched.local.jobs.journal import FILE_NAME, JournalUnavailableError, SqliteJournal, StateChanges
from cedana_sched.local.state_directory_lock import StateDirectoryError, lock_state_directory
from cedana_sched.local.views import EventView
from cedana_sched.model.errors import IncompatibleError, IntegrityError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Signal, Victim, WorkloadRef
from cedana_sched.model.records import Record, Restore, RestoreStep
from tests.unit.local.jobs.job_builders import job

SIGNAL = Signal(
    uid="sig-1",
    adapter="embedded",
    victims=(Victim(WorkloadRef("run-1", "default", "md", "here"), Identity("default", "md")),),
    reason="InCohortReclamation",
    observed_at=5.0,
)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SqliteJournal]:
    async with SqliteJournal.open(tmp_path) as opened:
        yield opened


def restore(uid: str) -> Record:
    return Restore(
        uid=uid,
        adapter="embedded",
        workload=WorkloadRef("run-1", "default", "md", "here"),
        identity=Identity("default", "md"),
        policy=CheckpointPolicy(deadline_seconds=7),
        step=RestoreStep.STAGING,
        created_at=1.0,
        deadline=2.0,
        snapshot=SnapshotRef(Identity("default", "md"), 3),
    )


async def test_jobs_come_back_with_their_runs_in_the_order_of_submission(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    late, early = job("late", at=9.0), job("early", at=1.0, env={"A": "ü"}, deadline_seconds=5)
    early = early.with_run(Run(uid="run-1", index=0, attempt=1)).with_run(Run(uid="run-2", index=1, attempt=1))

    await journal.save_changes(StateChanges(jobs=(late, early)))
    moved = apply_transition(early, TransitionCause.ADMITTED, "has its place").with_run(
        replace(early.runs[0], ended_at=4.0, exit_code=3)
    )
    await journal.save_changes(StateChanges(jobs=(moved,)))

    assert await journal.load_jobs() == (moved, late)
    async with SqliteJournal.open(tmp_path) as again:
        assert await again.load_jobs() == (moved, late)


async def test_the_coordinators_records_are_kept_and_forgotten(journal: SqliteJournal) -> None:
    await journal.save((restore("a"), restore("b")), ())
    await journal.save((restore("c"),), (restore("a"),))

    assert await journal.load() == (restore("b"), restore("c"))


async def test_signals_stay_until_they_are_settled(journal: SqliteJournal) -> None:
    later = replace(SIGNAL, uid="sig-0", observed_at=6.0)
    await journal.save_changes(StateChanges(signals=(later, SIGNAL)))

    assert await journal.load_signals() == (SIGNAL, later)

    await journal.save_changes(StateChanges(settled_signals=("sig-1",)))

    assert await journal.load_signals() == (later,)


async def test_a_step_that_cannot_be_written_whole_is_not_written_at_all(journal: SqliteJournal) -> None:
    taken = job("first").with_run(Run(uid="run-1", index=0, attempt=1))
    await journal.save_changes(StateChanges(jobs=(taken,)))
    await journal._connection.execute(
        "CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(FAIL, 'full'); END"
    )

    with pytest.raises(JournalUnavailableError, match="full"):
        await journal.save_changes(
            StateChanges(jobs=(job("second"),), signals=(SIGNAL,), events=(EventView(1.0, "Some", "thing"),))
        )

    assert await journal.load_jobs() == (taken,)
    assert await journal.load_signals() == ()
    await journal.save_changes(StateChanges(jobs=(job("third"),)))
    assert len(await journal.load_jobs()) == 2


async def test_a_step_is_written_to_its_end_though_its_caller_is_cancelled(journal: SqliteJournal) -> None:
    saving = asyncio.create_task(journal.save_changes(StateChanges(jobs=(job("j"),), signals=(SIGNAL,))))
    await asyncio.sleep(0)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving

    assert [j.uid for j in await journal.load_jobs()] == ["j"]
    assert await journal.load_signals() == (SIGNAL,)


async def test_events_are_kept_to_a_bound_and_found_by_job(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "EVENTS_KEPT", 5)
    for number in range(9):
        event = EventView(float(number), "Happened", str(number), job=f"job-{number % 2}")
        await journal.save_changes(StateChanges(events=(event,)))

    assert [event.text for event in await journal.events()] == ["4", "5", "6", "7", "8"]
    assert [event.text for event in await journal.events(job="job-1")] == ["5", "7"]
    assert [event.text for event in await journal.events(limit=2)] == ["7", "8"]


async def test_of_jobs_that_ended_long_ago_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [apply_transition(job(f"j{i}", at=float(i)), TransitionCause.CANCELLED, "") for i in range(4)]
    old = ended[0].with_run(Run(uid="run-1", index=0, attempt=1))
    async with SqliteJournal.open(tmp_path) as first:
        await first.save_changes(StateChanges(jobs=(old, *ended[1:], job("live", at=0.0))))
    monkeypatch.setattr(journal_module, "ENDED_JOBS_KEPT", 2)

    async with SqliteJournal.open(tmp_path) as again:
        assert [j.uid for j in await again.load_jobs()] == ["live", "j2", "j3"]
        assert await again._rows("SELECT COUNT(*) FROM runs") == [(0,)]


async def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    async with SqliteJournal.open(tmp_path):
        pass
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()

    with pytest.raises(IncompatibleError, match="schema 99"):
        async with SqliteJournal.open(tmp_path):
            pass


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("CREATE TABLE precious (thing TEXT)")
    database.close()

    with pytest.raises(IntegrityError, match="no journal of this program"):
        async with SqliteJournal.open(tmp_path):
            pass


async def test_a_damaged_file_is_called_damaged(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all, but long enough to be read as one" * 100)

    with pytest.raises(IntegrityError, match="is damaged"):
        async with SqliteJournal.open(tmp_path):
            pass


async def test_a_record_that_this_version_cannot_read_is_not_skipped(journal: SqliteJournal) -> None:
    await journal._connection.execute("INSERT INTO records VALUES ('x', CAST('{\"type\": \"Future\"}' AS BLOB))")

    with pytest.raises(IntegrityError, match="cannot read"):
        await journal.load()


async def test_a_journal_is_its_owners_alone_also_an_older_one(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    file.touch()
    file.chmod(0o644)

    async with SqliteJournal.open(tmp_path) as journal:
        await journal.save_changes(StateChanges(jobs=(job("job-1", env={"TOKEN": "secret"}),)))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob(f"{FILE_NAME}*")}

    assert set(modes.values()) == {0o600}
    assert f"{FILE_NAME}-wal" in modes


async def test_a_state_directory_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailableError, match="unable to open"):
        async with SqliteJournal.open(tmp_path / "missing"):
            pass


def test_a_state_directory_belongs_to_one_engine(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with (
        lock_state_directory(directory),
        pytest.raises(StateDirectoryError, match=r"another engine \(PID \d+\)"),
        lock_state_directory(directory),
    ):
        pass
    with lock_state_directory(directory):
        pass


def test_a_file_in_the_place_of_the_state_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").touch()

    with pytest.raises(StateDirectoryError, match="cannot be used"), lock_state_directory(tmp_path / "state"):
        pass
