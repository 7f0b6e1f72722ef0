"""Verification that a snapshot can be restored: reads every chunk."""

from __future__ import annotations

import threading
import time

import msgspec

from cedana_sched.model.errors import IntegrityError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.manifest import Manifest
from cedana_sched.store.backend import Backend
from cedana_sched.store.reader import ChunkReader, Progress, ReadRequest, read_in_parallel
from cedana_sched.store.sealing.seal import NO_SEAL, Seal

MOST_PROBLEMS = 100


class VerifyReport(msgspec.Struct, frozen=True):
    """Result of `verify`; `problems` are sentences, at most a hundred."""

    snapshot: SnapshotRef
    chunks: int
    bytes_verified: int
    seconds: float
    damaged: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.damaged


def unreadable_report(ref: SnapshotRef, error: IntegrityError) -> VerifyReport:
    """Return the report for a snapshot with a damaged manifest, of which nothing else is readable."""
    return VerifyReport(ref, chunks=0, bytes_verified=0, seconds=0.0, damaged=1, problems=(error.message,))


def verify_snapshot(
    backend: Backend, manifest: Manifest, progress: Progress | None = None, *, seal: Seal = NO_SEAL
) -> VerifyReport:
    """Fetch every chunk and compare its digest; damaged ones are listed, and the rest is read all the same.

    Raises:
        StoreUnavailableError: the store failed.
    """
    begun = time.monotonic()
    chunks = ChunkReader(backend, manifest, seal)
    total = sum(memoryview(manifest.chunks.sizes).cast("I"))
    lock = threading.Lock()
    problems: list[str] = []
    verified = 0

    def verify(read: ReadRequest) -> None:
        nonlocal verified
        sound = 0
        for number in read.chunks:
            row = manifest.chunks[number]
            try:
                chunks.fetch_chunks(ReadRequest(row.pack, row.offset, row.stored, (number,)), lambda *_: None)
                sound += row.size
            except IntegrityError as error:
                with lock:
                    problems.append(error.message)
        with lock:
            verified += sound
            if progress is not None:
                progress(verified, total)

    read_in_parallel(verify, chunks.plan_reads(range(len(manifest.chunks))))
    return VerifyReport(
        snapshot=manifest.ref,
        chunks=len(manifest.chunks),
        bytes_verified=verified,
        seconds=time.monotonic() - begun,
        damaged=len(problems),
        problems=tuple(problems[:MOST_PROBLEMS]),
    )
