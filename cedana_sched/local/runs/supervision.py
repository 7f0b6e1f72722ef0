"""The engine's watch on one run: follows the supervisor without polling, and finalizes the run whichever process died.

A pidfd signals the end of the supervisor, inotify its writes of the state. A supervisor that ended without a record
was killed: the engine then kills the job's processes, removes its groups, and records the run as lost.
"""

from __future__ import annotations

import asyncio
import os
import time

import structlog
from asyncinotify import Inotify, Mask

from cedana_sched.local.runs.readable_descriptors import wait_any_readable
from cedana_sched.local.runs.run_directory import ExitRecord, Failure, RunDirectory, RunSpec, RunState
from cedana_sched.model.errors import EVIDENCE_LINES, CedanaSchedError
from cedana_sched.retrying import CHORES, Backoff
from cedana_sched.snapshot.cgroups import Cgroup

_EVENT_BYTES = 64 << 10
_LOCK_RETRY_SECONDS = 0.02
_LOST = "its supervisor was killed, so the run was ended"
_LOST_REMEDY = "see the kernel's log for the cause (out of memory?); a job with an id continues from its last snapshot"

log = structlog.get_logger(__name__)


class SupervisedRun:
    """A run from its start, or its adoption by a new engine, to its recorded end.

    `settled` is set once the run has started or never will, `ended` once nothing of the run is left; `record` is set
    before `ended`.
    """

    def __init__(self, directory: RunDirectory, spec: RunSpec) -> None:
        self.directory = directory
        self.spec = spec
        self.group = Cgroup(spec.cgroup)
        self.state: RunState | None = None
        self.record: ExitRecord | None = None
        self.unwanted = False
        """Whether a restore was abandoned, so that its end is not published."""
        self.settled = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def uid(self) -> str:
        return self.directory.uid

    @property
    def has_started(self) -> bool:
        """Whether the job has started."""
        return self.state is not None and self.state.init is not None

    async def watch(self, pidfd: int | None = None) -> None:
        """Follow the supervisor to its end, then finalize the run. `pidfd` is the supervisor's, if known."""
        with Inotify() as inotify:
            inotify.add_watch(self.directory.path, Mask.MOVED_TO | Mask.ONLYDIR)
            lock = await self._await_supervisor(inotify.fd, pidfd)
        try:
            await self._finalize_with_retries()
        finally:
            os.close(lock)
        self.ended.set()
        self.settled.set()

    async def _await_supervisor(self, inotify: int, pidfd: int | None) -> int:
        """Wait until the run has no supervisor, and return the run's lock."""
        while True:
            self.read_state()
            if pidfd is None and self.state is not None:
                pidfd = self.state.shim.open_pidfd()
            if pidfd is None and (lock := self.directory.try_to_lock()) is not None:
                return lock
            if pidfd is None:
                await self._await_unknown_holder(inotify)
            elif await wait_any_readable(inotify, pidfd) == inotify:
                os.read(inotify, _EVENT_BYTES)
            else:
                os.close(pidfd)
                pidfd = None

    async def _await_unknown_holder(self, inotify: int) -> None:
        """Wait a moment while the lock has a holder that is not in the state.

        The holder is a supervisor that has not written its state yet or, for some milliseconds, a fresh child of a
        killed supervisor. The kernel signals the release of a lock only to a thread that blocks in flock(2).
        """
        try:
            async with asyncio.timeout(_LOCK_RETRY_SECONDS):
                await wait_any_readable(inotify)
        except TimeoutError:
            return
        os.read(inotify, _EVENT_BYTES)

    def read_state(self) -> None:
        """Read the state that the supervisor has written."""
        self.state = self.directory.read_state() or self.state
        if self.has_started:
            self.settled.set()

    async def _finalize_with_retries(self) -> None:
        """Finalize the run, with retries: processes that wait for a device die late, and the disk may be full."""
        backoff = Backoff(CHORES)
        while self.record is None:
            try:
                self.record = await asyncio.to_thread(self._finalize)
            except (CedanaSchedError, OSError) as error:
                pause = backoff.next_pause()
                log.warning("run cannot be ended", run=self.uid, error=str(error), attempt=backoff.failures)
                await asyncio.sleep(pause)

    def _finalize(self) -> ExitRecord:
        """Kill the run's processes, remove its groups, and return its record. Precondition: the lock is held."""
        self.group.kill()
        self.group.remove()
        record = self.directory.read_exit()
        if record is None:
            words = tuple(self.directory.log.read_text(errors="replace").splitlines()[-EVIDENCE_LINES:])
            record = ExitRecord(time.time(), lost=True, failure=Failure(_LOST, _LOST_REMEDY, words, retryable=True))
            self.directory.write_exit(record)
        return record
