"""The coordinator's records as the engine asks for them."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from cedana_sched.local.record_cache import RecordCache
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import Progress
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import AfterCommit, WorkloadRef
from cedana_sched.model.records import Checkpoint, CheckpointStep, Record, Transfer


class MemoryJournal:
    def __init__(self, *records: Record) -> None:
        self.records = records

    async def load(self) -> tuple[Record, ...]:
        return self.records

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...]) -> None: ...


def checkpoint(
    uid: str, run: str = "w1", attempt: int = 1, step: CheckpointStep = CheckpointStep.DUMPING
) -> Checkpoint:
    return Checkpoint(
        uid=uid,
        signal_uid="s1",
        adapter="embedded",
        workload=WorkloadRef(run, "default", run, "local"),
        identity=Identity("default", run),
        policy=CheckpointPolicy(),
        gang=None,
        after_commit=AfterCommit.STOP,
        reason="test",
        step=step,
        created_at=float(attempt),
        deadline=600.0,
        attempt=attempt,
    )


def records(*loaded: Record) -> RecordCache:
    return RecordCache(MemoryJournal(*loaded), lambda _: None)


async def test_a_signal_is_settled_by_the_last_attempt_of_every_victim() -> None:
    book = records(checkpoint("c1", step=CheckpointStep.FAILED))
    await book.load()
    assert book.checkpoints_if_terminal("s1") is not None
    await book.save((checkpoint("c2", attempt=2), checkpoint("c3", run="w2", step=CheckpointStep.READY)), ())
    assert book.checkpoints_if_terminal("s1") is None
    await book.save((checkpoint("c2", attempt=2, step=CheckpointStep.READY),), ())
    assert {c.uid for c in book.checkpoints_if_terminal("s1") or ()} == {"c2", "c3"}


async def test_who_waits_for_a_signal_is_woken_when_it_settles() -> None:
    book = records(checkpoint("c1"))
    await book.load()
    waiting = asyncio.create_task(book.wait_until_terminal("s1"))
    await asyncio.sleep(0)
    ready = checkpoint("c1", step=CheckpointStep.READY)
    await book.save((ready,), ())
    assert await waiting == (ready,)


async def test_the_newest_checkpoint_of_a_job_is_that_of_its_newest_run() -> None:
    book = records(checkpoint("c1"), checkpoint("c2", run="w2", attempt=2), checkpoint("c3", run="w3", attempt=3))
    await book.load()
    found = book.newest_checkpoint_of(frozenset({"w1", "w2"}))
    assert found is not None
    assert found.uid == "c2"
    assert book.newest_checkpoint_of(frozenset({"w9"})) is None


async def test_progress_is_shown_while_the_dump_lasts_and_not_after() -> None:
    book = records(checkpoint("c1"))
    await book.load()
    moved = book.update_progress(Progress("c1", Transfer(read_bytes=7)))
    assert moved is not None
    assert moved.transfer.read_bytes == 7
    await book.save((replace(moved, step=CheckpointStep.FAILED),), ())
    assert book.update_progress(Progress("c1", Transfer(read_bytes=9))) is None


async def test_nothing_is_left_of_what_is_forgotten() -> None:
    record = checkpoint("c1", step=CheckpointStep.READY)
    book = records(record)
    await book.load()
    await book.save((), (record,))
    assert book.all() == ()
    assert (book.checkpoints_if_terminal("s1"), book.newest_checkpoint_of(frozenset({"w1"}))) == (None, None)
    assert (book._of_workload, book._of_signal) == ({}, {})
