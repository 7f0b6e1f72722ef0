"""The capture process: dumps one workload into the store, commits, and exits.

    python -m cedana_sched.agent.capture        request on stdin (one line), reports on stdout (one line each)

It is a process of its own, because a dump moves gigabytes through Python: it shares no interpreter lock with the agent,
its memory is freed whole, and a killed capture process is to the agent only a failed capture. The agent starts it ahead
of time, so that a preemption does not wait for its imports.

The process stops the dump when it reads more from stdin, or at SIGTERM (from this agent or the next). End of file on
stdin means that the agent has exited: then the process stops as well, unless the request lets it outlive the agent.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from cedana_sched.agent.capture_messages import (
    CaptureCommitted,
    CaptureFailed,
    CaptureProgress,
    CaptureReport,
    CaptureRequest,
    decode_request,
    encode,
)
from cedana_sched.agent.capture_watchdog import run_in_background_thread, watch_for_stall
from cedana_sched.agent.compatibility_facts import compatibility_of_node
from cedana_sched.agent.orphan_processes import await_orphans, lock_capture_directory
from cedana_sched.agent.workload_dump import WorkloadDump
from cedana_sched.model.errors import CedanaSchedError, DumpError, RetryableError, may_succeed_on_retry
from cedana_sched.model.manifest import SnapshotMetadata, SnapshotSummary, TransferStats
from cedana_sched.model.records import Transfer
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.dump import LOG_NAME
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig

PROGRESS_SECONDS = 0.25
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_READ_BYTES = 1 << 20


class NotFrozenError(DumpError, RetryableError):
    """The workload was thawed after its freeze. A dump now would let it execute between the dump and its kill."""


def main() -> int:
    """Run the capture process; see the module."""
    reports = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)  # output of libraries must not mix with the reports
    with os.fdopen(reports, "wb", buffering=0) as stream:
        return _serve(_Reporter(stream))


class _Reporter:
    """Writes reports, one per line, from any thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __call__(self, report: CaptureReport) -> None:
        with contextlib.suppress(BrokenPipeError):  # the agent has exited; stdin shows that too
            self._stream.write(encode(report))


def _serve(publish: _Reporter) -> int:
    line = _read_request_line(_STDIN)
    if not line:
        return 0  # the agent exited before it needed this process, or cancelled the capture
    request = decode_request(line)
    try:
        with _lock_work_directory(request):
            report: CaptureReport = capture(request, publish)
    except CedanaSchedError as error:
        report = CaptureFailed(_failure_text(error), retryable=_is_retryable(error))
    except OSError as error:  # this node's disk or processes; the workload is thawed by then
        report = CaptureFailed(f"this node could not take the snapshot: {error}", retryable=True)
    publish(report)
    return 0


def _read_request_line(stdin: int) -> bytes:
    """Return the request, which may have many MiB of notes; empty if it is incomplete, or cancelled already."""
    parts: list[bytes] = []
    while part := os.read(stdin, _READ_BYTES):
        parts.append(part)
        if b"\n" in part:
            return b"".join(parts) if part.endswith(b"\n") and part.count(b"\n") == 1 else b""
    return b""


def capture(request: CaptureRequest, publish: Callable[[CaptureReport], None]) -> CaptureCommitted:
    """Dump and commit, unless this checkpoint's snapshot is committed already.

    Raises:
        DumpError, StoreError: nothing is committed, and the workload runs on.
    """
    cache = Path(request.cache_directory)
    toolchain = request.toolchain
    if any((request.criu_directory(tree.name) / LOG_NAME).exists() for tree in request.workload.containers):
        await_orphans(toolchain, Path(request.work_directory), request.workload)  # of an earlier capture
    storage = StorageConfig.load(request.store)
    store = SnapshotStore.open(
        storage,
        compression=request.compression,
        cache_directory=cache,
        cache_bytes=request.cache_bytes,
        notes=Path(request.store_notes) if request.store_notes else None,
    )
    if committed := store.find_committed(request.identity, request.checkpoint_uid):
        return _committed_report(committed, store.manifest_digest(committed.ref))
    if not all(map(freezer.is_frozen, request.workload.freezer_cgroups)):
        raise NotFrozenError("the workload was let run on since it was frozen", remedy="freeze it and try again")
    with store.begin(request.identity, checkpoint_uid=request.checkpoint_uid, lineage=request.lineage) as writer:
        dump = WorkloadDump(toolchain, request, writer)
        quiet = watch_for_stall(
            lambda: (writer.progress, writer.steps),
            lambda: dump.criu_is_at_work,
            request.stall_seconds,
            _make_abort_callback(publish),
        )
        cancelled = _listen_for_cancellation(dump, outlives_agent=request.outlives_agent)
        with cancelled, _report_progress_periodically(publish, lambda: writer.progress), quiet:
            metadata = _build_snapshot_metadata(request, toolchain, {"dump": dump.run()})
            manifest = writer.commit(metadata)
    return _committed_report(manifest.summary, writer.manifest_digest)


def _make_abort_callback(publish: Callable[[CaptureReport], None]) -> Callable[[str], None]:
    """Return a function that reports a failure and kills this process.

    No thread of a hung process can be relied on; the agent cleans up as after any kill.
    """

    def end(why: str) -> None:
        publish(CaptureFailed(why, retryable=True))
        os.kill(os.getpid(), signal.SIGKILL)

    return end


def _committed_report(summary: SnapshotSummary, manifest: str) -> CaptureCommitted:
    return CaptureCommitted(summary.ref, _transfer_from_stats(summary.stats), summary.abandoned_snapshot, manifest)


def _build_snapshot_metadata(
    request: CaptureRequest, toolchain: Toolchain, timings: dict[str, float]
) -> SnapshotMetadata:
    return SnapshotMetadata(
        checkpoint_uid=request.checkpoint_uid,
        compatibility=compatibility_of_node(toolchain.version),
        reason=request.reason,
        adapter=request.adapter,
        taken_at=request.frozen_at,
        timings=timings,
        runtime=request.workload.restore_facts,
    )


@contextlib.contextmanager
def _lock_work_directory(request: CaptureRequest) -> Iterator[None]:
    """Wait until an earlier capture of this checkpoint, started by an agent that died, has ended."""
    work = Path(request.work_directory)
    descriptor = lock_capture_directory(work, request.workload.freezer_cgroups)
    try:
        yield
        shutil.rmtree(work, ignore_errors=True)  # a failed dump keeps its log; leftover files undo no commit
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _listen_for_cancellation(dump: WorkloadDump, *, outlives_agent: bool) -> Iterator[None]:
    done = os.eventfd(0, os.EFD_CLOEXEC)

    def listen() -> None:
        waiter = select.poll()
        for descriptor in (_STDIN, done, terminated):
            waiter.register(descriptor, select.POLLIN)
        while done not in (ready := dict(waiter.poll())):
            word = b"SIGTERM" if terminated in ready else os.read(_STDIN, 64)
            if word or not outlives_agent:
                dump.cancel("the checkpoint was cancelled" if word else "the agent ended during the dump")
                return
            waiter.unregister(_STDIN)
            _silence_output()

    with _sigterm_descriptor() as terminated:
        thread = threading.Thread(target=listen, name="outside")
        thread.start()
        try:
            yield
        finally:
            os.eventfd_write(done, 1)
            thread.join()
            os.close(done)


@contextlib.contextmanager
def _sigterm_descriptor() -> Iterator[int]:
    """Yield a descriptor that becomes readable at SIGTERM, whichever thread receives it."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    waker = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGTERM, before)
        os.close(reader)
        os.close(writer)


def _silence_output() -> None:
    """Redirect output of libraries to /dev/null: a write without a reader would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for descriptor in (_STDOUT, _STDERR):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _report_progress_periodically(
    publish: Callable[[CaptureReport], None], stats: Callable[[], TransferStats]
) -> contextlib.AbstractContextManager[None]:
    def publish_progress(done: threading.Event) -> None:
        while not done.wait(PROGRESS_SECONDS):
            publish(CaptureProgress(_transfer_from_stats(stats())))

    return run_in_background_thread(publish_progress, "progress")


def _transfer_from_stats(stats: TransferStats) -> Transfer:
    return Transfer(stats.read_bytes, stats.zero_bytes, stats.reused_bytes, stats.stored_bytes)


def _failure_text(error: CedanaSchedError) -> str:
    """Return the error, its remedy, and the last lines of its evidence, for a record and an Event."""
    return "; ".join((str(error), *error.evidence[-3:]))


def _is_retryable(error: BaseException) -> bool:
    return may_succeed_on_retry(error) or (error.__cause__ is not None and may_succeed_on_retry(error.__cause__))


if __name__ == "__main__":
    sys.exit(main())
