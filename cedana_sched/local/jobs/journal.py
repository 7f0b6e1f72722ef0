"""The engine's durable state: jobs, their runs, signals, the coordinator's records, events.

One SQLite file in the state directory, written only by the engine that owns the directory. Each `save…` is one
transaction, durable when the call returns (WAL, synchronous=FULL): a reader never sees a partial step.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import msgspec
from msgspec.structs import replace

from cedana_sched.local.jobs.job import Job, Run
from cedana_sched.local.views import EventView
from cedana_sched.model import codec
from cedana_sched.model.errors import CedanaSchedError, IncompatibleError, IntegrityError, RetryableError
from cedana_sched.model.preemption import Signal
from cedana_sched.model.records import Record

FILE_NAME = "journal.sqlite"
SCHEMA_VERSION = 1
APPLICATION_ID = 0x43454453
"""SQLite application_id of a journal; prevents overwriting another program's database."""
EVENTS_KEPT = 10_000
ENDED_JOBS_KEPT = 1_000

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE jobs (
    uid TEXT PRIMARY KEY, live INTEGER NOT NULL, submitted_at REAL NOT NULL, body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE runs (
    job TEXT NOT NULL REFERENCES jobs (uid) ON DELETE CASCADE,
    position INTEGER NOT NULL, uid TEXT NOT NULL UNIQUE, body BLOB NOT NULL,
    PRIMARY KEY (job, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE signals (uid TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE records (uid TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, body BLOB NOT NULL) STRICT;
CREATE INDEX events_by_job ON events (job, number);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


_Write = Callable[[aiosqlite.Connection], Awaitable[None]]


class JournalUnavailableError(RetryableError):
    """The journal cannot be read or written now (disk full, file system error). Nothing was changed."""


class StateChanges(msgspec.Struct, frozen=True):
    """The changes of one decision of the engine, written atomically."""

    jobs: tuple[Job, ...] = ()
    signals: tuple[Signal, ...] = ()
    settled_signals: tuple[str, ...] = ()
    events: tuple[EventView, ...] = ()


class SqliteJournal:
    """The journal of one state directory; implements the coordinator's `ports.Journal` and `loop.LoopJournal`."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()
        self._written: dict[str, Job] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, directory: Path) -> AsyncIterator[SqliteJournal]:
        """Open or create the journal of a state directory that this process owns.

        Raises:
            IncompatibleError: a newer version of this program wrote it.
            IntegrityError: the file is corrupt, or not a journal.
            JournalUnavailableError: the file cannot be opened now.
        """
        path = directory / FILE_NAME
        with _translate_errors(path):
            # aiosqlite leaks its thread when a connection fails, so sqlite3 opens the file first
            await asyncio.to_thread(lambda: sqlite3.connect(path).close())
            with contextlib.suppress(PermissionError):  # another user's file, who has decided
                path.chmod(0o600)  # jobs' environments may hold secrets; the files beside it get the same mode
            connection = await aiosqlite.connect(path, isolation_level=None)
        try:
            with _translate_errors(path):
                await _prepare_schema(connection, path)
            journal = cls(connection)
            yield journal
            async with journal._turn:  # the write of a cancelled caller may still be in flight
                pass
        finally:
            await connection.close()

    # -- the coordinator's records

    async def load(self) -> tuple[Record, ...]:
        """Return all records that were saved and not deleted."""
        rows = await self._rows("SELECT body FROM records ORDER BY uid")
        return tuple(_decoded(body, Record) for (body,) in rows)

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...]) -> None:
        """Write `records` and delete `forget` in one transaction.

        Raises:
            JournalUnavailableError: nothing was written.
        """

        async def write(connection: aiosqlite.Connection) -> None:
            rows = [(record.uid, codec.encode(record)) for record in records]
            await connection.executemany("INSERT OR REPLACE INTO records VALUES (?, ?)", rows)
            await connection.executemany("DELETE FROM records WHERE uid = ?", [(record.uid,) for record in forget])

        await self._transaction(write)

    # -- the scheduling loop's jobs and signals

    async def load_jobs(self) -> tuple[Job, ...]:
        """Return all jobs, oldest first."""
        runs: dict[str, list[Run]] = {}
        for job, body in await self._rows("SELECT job, body FROM runs ORDER BY job, position"):
            runs.setdefault(job, []).append(_decoded(body, Run))
        jobs = []
        for uid, body in await self._rows("SELECT uid, body FROM jobs ORDER BY submitted_at, uid"):
            jobs.append(replace(_decoded(body, Job), runs=tuple(runs.get(uid, ()))))
        self._written = {job.uid: job for job in jobs}
        return tuple(jobs)

    async def load_signals(self) -> tuple[Signal, ...]:
        """Return open signals, in the order of their observation."""
        signals = [_decoded(body, Signal) for (body,) in await self._rows("SELECT body FROM signals")]
        return tuple(sorted(signals, key=lambda signal: (signal.observed_at, signal.uid)))

    async def save_changes(self, step: StateChanges) -> None:
        """Persist a decision.

        Raises:
            JournalUnavailableError: nothing was written.
        """
        await self._transaction(lambda connection: self._write_changes(connection, step))
        self._written |= {job.uid: job for job in step.jobs}

    async def events(self, *, job: str | None = None, limit: int = 200) -> tuple[EventView, ...]:
        """Return the newest events of one job or of all jobs, in chronological order."""
        where, values = ("WHERE job = ?", (job,)) if job is not None else ("", ())
        query = f"SELECT body FROM events {where} ORDER BY number DESC LIMIT ?"  # noqa: S608  # both texts are constants of this function
        rows = await self._rows(query, (*values, limit))
        return tuple(_decoded(body, EventView) for (body,) in reversed(rows))

    async def _write_changes(self, connection: aiosqlite.Connection, step: StateChanges) -> None:
        for job in step.jobs:
            await self._write_job(connection, job)
        signals = [(signal.uid, codec.encode(signal)) for signal in step.signals]
        await connection.executemany("INSERT OR REPLACE INTO signals VALUES (?, ?)", signals)
        await connection.executemany("DELETE FROM signals WHERE uid = ?", [(uid,) for uid in step.settled_signals])
        if step.events:
            events = [(event.job, codec.encode(event)) for event in step.events]
            await connection.executemany("INSERT INTO events (job, body) VALUES (?, ?)", events)
            last = "SELECT MAX(number) FROM events"
            await connection.execute(f"DELETE FROM events WHERE number <= ({last}) - {EVENTS_KEPT}")  # noqa: S608

    async def _write_job(self, connection: aiosqlite.Connection, job: Job) -> None:
        """Write a job, and those of its runs that are new or changed."""
        body = codec.encode(replace(job, runs=()))
        await connection.execute(
            "INSERT INTO jobs VALUES (?, ?, ?, ?) ON CONFLICT (uid) DO UPDATE SET live = excluded.live, "
            "body = excluded.body",
            (job.uid, job.live, job.description.submitted_at, body),
        )
        before = self._written[job.uid].runs if job.uid in self._written else ()
        rows = [
            (job.uid, position, run.uid, codec.encode(run))
            for position, run in enumerate(job.runs)
            if position >= len(before) or before[position] != run
        ]
        await connection.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", rows)

    # -- SQLite

    async def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with _translate_errors(None):
            async with self._turn, self._connection.execute(query, values) as cursor:
                return list(await cursor.fetchall())

    async def _transaction(self, write: _Write) -> None:
        """Run `write` as one transaction, which completes even if the caller is cancelled meanwhile."""
        await asyncio.shield(asyncio.ensure_future(self._execute_transaction(write)))

    async def _execute_transaction(self, write: _Write) -> None:
        async with self._turn:
            with _translate_errors(None):
                await self._connection.execute("BEGIN IMMEDIATE")
                try:
                    await write(self._connection)
                    await self._connection.execute("COMMIT")
                except BaseException:
                    await self._roll_back()
                    raise

    async def _roll_back(self) -> None:
        if self._connection.in_transaction:  # SQLite rolls back by itself after some errors, such as a full disk
            await self._connection.execute("ROLLBACK")


async def _prepare_schema(connection: aiosqlite.Connection, path: Path) -> None:
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        await connection.execute(f"PRAGMA {pragma}")
    version, application = await _pragma(connection, "user_version"), await _pragma(connection, "application_id")
    if version == 0 and application == 0:
        async with connection.execute("SELECT COUNT(*) FROM sqlite_schema") as cursor:
            row = await cursor.fetchone()
        if row is not None and row[0] == 0:
            await connection.executescript(_SCHEMA)
            return
    if application != APPLICATION_ID:
        raise IntegrityError(f"{path} is no journal of this program", remedy="give the engine its own --state-dir")
    if version > SCHEMA_VERSION:
        raise IncompatibleError(
            f"{path} was written by a newer version of this program: schema {version}, known is {SCHEMA_VERSION}",
            remedy="start that version, or give this one its own --state-dir",
        )
    await connection.execute(
        "DELETE FROM jobs WHERE live = 0 AND uid NOT IN "
        "(SELECT uid FROM jobs WHERE live = 0 ORDER BY submitted_at DESC LIMIT ?)",
        (ENDED_JOBS_KEPT,),
    )


async def _pragma(connection: aiosqlite.Connection, name: str) -> int:
    async with connection.execute(f"PRAGMA {name}") as cursor:
        row = await cursor.fetchone()
    return int(row[0]) if row is not None else 0


def _decoded(body: bytes, expected: Any) -> Any:
    try:
        return codec.decode(body, expected)
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"the journal holds what this version cannot read: {error}",
            remedy="start the version that wrote it, or give this one its own --state-dir",
        ) from error


_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


@contextlib.contextmanager
def _translate_errors(path: Path | None) -> Iterator[None]:
    """Raise errors of SQLite as `CedanaSchedError`s."""
    try:
        yield
    except sqlite3.Error as error:
        where = str(path) if path else "the journal"
        raise _error_from_sqlite(error, where) from error


def _error_from_sqlite(error: sqlite3.Error, where: str) -> CedanaSchedError:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and (code & 0xFF) in _DAMAGE:
        return IntegrityError(
            f"{where} is damaged: {error}", remedy="restore it from a backup, or begin with another --state-dir"
        )
    return JournalUnavailableError(
        f"{where} cannot be read or written: {error}", remedy="free space on, or repair, the file system it is on"
    )
