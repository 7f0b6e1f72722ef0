"""Runs `criu dump --stream` on a process tree; after a failure the tree is as it was before.

The agent freezes the tree's cgroup first. CRIU finds it frozen, seizes every task with ptrace, thaws the cgroup while
the tasks are trapped (its own code must run inside them), and freezes it again before it detaches (criu/seize.c,
`freezer_restore_state`). So the workload executes nothing between the agent's freeze and the agent's next step after
the dump: kill, or thaw.

Only the command line can stream: with RPC, CRIU aborts (4.2.1 opens its images directory with mode -1).

To stop CRIU (a failing sink, `cancel`, the deadline), the stream is closed first: CRIU's next write fails, it undoes
everything and exits. Only a CRIU that does not exit within `_ORDERLY_SECONDS` is killed. See `killed_dump_cleanup` for
the cleanup after that.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from cedana_sched.model.errors import DumpError, RetryableError, SnapshotError
from cedana_sched.runtime_handler.progress_signs import STALL_SECONDS
from cedana_sched.snapshot import current_terminals, link_remap_check, stored_gzip_install
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.explain import explain_criu_exit
from cedana_sched.snapshot.freezer import pids_in_cgroup, request_freeze, thaw
from cedana_sched.snapshot.image_stream_receiver import ImageSink, StreamReceiver
from cedana_sched.snapshot.killed_dump_cleanup import undo_killed_dump
from cedana_sched.snapshot.pending_connections import can_skip_pending_connections
from cedana_sched.snapshot.preflight import find_tracers
from cedana_sched.snapshot.processes import process_tree
from cedana_sched.snapshot.stall_detection import Stall, StallDetector
from cedana_sched.snapshot.stopped import make_stops_pending, stop_again

LOG_NAME = "dump.log"
_SOCKETS = Path("/run/cedana-sched/streams")
_ORDERLY_SECONDS = 3.0
_GHOST_BYTES = 64 << 20
"""Deleted files that are still open are part of the snapshot up to this size each."""
_KEPT = link_remap_check.IMAGES | current_terminals.IMAGES
"""Images that are checked when the dump has succeeded."""


class DumpInterruptedError(DumpError, RetryableError):
    """CRIU was killed from outside, hung, or met a transient state: a retry of the dump may succeed."""


class DumpRequest(msgspec.Struct, frozen=True):
    """Parameters of a dump."""

    root_pid: int
    """The root process of the tree, in this process's PID namespace."""
    workdir: Path
    """A directory for this dump only: CRIU's log and statistics stay there, and the stream's socket."""
    freeze_cgroup: Path | None = None
    """The cgroup (v1 freezer or v2) of the whole tree, and nothing else; frozen by the caller."""
    externals: tuple[str, ...] = ()
    """`--external` items, for instance `Externals.criu_external_values()`."""
    root: Path = Path("/")
    """The tree's root directory, if CRIU cannot find it."""
    ext_unix_sk: bool = False
    """Permit sockets connected to processes outside; after the restore they are disconnected."""
    has_outside_master: bool = False
    """Permit one terminal whose master is open outside only; the restore provides another master."""
    manage_cgroups: str = "ignore"
    saves_shared_memory: bool = True
    """Whether /dev/shm is a mount of the tree's own, whose files are in the images (see `link_remap_check`)."""
    timeout_seconds: float = 600.0
    stall_seconds: float = STALL_SECONDS
    """Seconds that the dump may go without progress; see `progress`."""
    launcher: tuple[str, ...] = ()
    """Prefix of CRIU's command line, like `nsenter --mount=/proc/1/ns/mnt --`: `workdir` and `/run/cedana-sched`
    must have the same paths there, and the other paths in this request are resolved there."""


class DumpResult(msgspec.Struct, frozen=True):
    """Result of a successful dump."""

    seconds: float
    bytes: int
    images: tuple[str, ...]
    log: Path


class Dump:
    """One dump. `run` blocks; `cancel` is thread-safe, at any time."""

    def __init__(self, toolchain: Toolchain, request: DumpRequest, sink: ImageSink) -> None:
        self._toolchain = toolchain
        self._request = request
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        request.workdir.mkdir(parents=True, exist_ok=True)
        self._images = _socket_directory()
        self._why_stopped = ""
        self._stall: Stall | None = None
        self._receiver = StreamReceiver(self._images, sink, on_failure=self._signal_stop, keep=_KEPT)

    def __del__(self) -> None:
        os.close(self._stop)

    @property
    def bytes_received(self) -> int:
        """Bytes of the snapshot received so far."""
        return self._receiver.bytes_received

    def cancel(self, why: str = "the dump was cancelled") -> None:
        """Make `run` raise DumpError soon, with the tree running on. No effect after the end."""
        self._why_stopped = self._why_stopped or why
        self._receiver.abort()
        self._signal_stop()

    def run(self) -> DumpResult:
        """Dump the tree into the sink.

        Raises:
            DumpInterruptedError: CRIU was killed, or met a transient state.
            DumpError: the dump failed, was cancelled, or exceeded its time. The processes run on (a frozen cgroup is
                thawed), and the cause is the sink's own exception if there was one.
        """
        try:
            return self._run()
        finally:
            shutil.rmtree(self._images)

    def _run(self) -> DumpResult:
        began = time.monotonic()
        self._receiver.start()
        self._prepare_processes()
        with (self._request.workdir / "criu.stderr").open("wb") as stderr:
            criu = self._start_criu(stderr)
            status = self._wait(criu)
        if status:
            self._clean_up(status)  # at once: a sink whose store is unavailable may take long to finish
        self._receiver.finish(complete=status == 0)
        if status or self._receiver.failure or self._why_stopped:
            if not status:
                self._clean_up(status)
            raise self._dump_error_for(status) from self._receiver.failure
        try:
            link_remap_check.require_restorable_remaps(
                self._toolchain, self._receiver.kept, saves_shared_memory=self._request.saves_shared_memory
            )
            current_terminals.require_known_terminals(self._toolchain, self._receiver.kept)
        except SnapshotError:
            self._clean_up(status)
            raise
        stop_again(self._request.workdir)
        return DumpResult(
            seconds=time.monotonic() - began,
            bytes=self._receiver.bytes_received,
            images=tuple(self._receiver.names),
            log=self._request.workdir / LOG_NAME,
        )

    def _prepare_processes(self) -> None:
        """Put the frozen processes into a state in which CRIU can seize them.

        Raises:
            DumpError: a debugger is attached to one. CRIU would retry until its timeout.
        """
        if self._request.freeze_cgroup is None:
            return
        pids = pids_in_cgroup(self._request.freeze_cgroup)
        if traced := find_tracers(pids):
            self._receiver.finish(complete=False)
            thaw(self._request.freeze_cgroup)
            raise DumpError(str(traced[0]), remedy="the processes run on")
        make_stops_pending(pids, self._request.workdir)

    def _start_criu(self, output: BinaryIO) -> subprocess.Popen[bytes]:
        try:
            criu = subprocess.Popen(
                [*self._request.launcher, self._toolchain.criu, *self._criu_arguments()],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._prepare_criu_environment(),
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._receiver.finish(complete=False)
            self._clean_up(0)
            raise DumpError(f"CRIU could not be started: {error}", remedy="run as root; see `doctor`") from error
        spare_from_oom_killer(criu.pid)
        return criu

    def _prepare_criu_environment(self) -> dict[str, str]:
        environment = self._toolchain.criu_environment()
        stored_gzip_install.install_gzip(self._images, self._toolchain.gzip)
        return environment | {"PATH": f"{self._images}:{environment.get('PATH', os.defpath)}"}

    def _criu_arguments(self) -> list[str]:
        request = self._request
        arguments = ["dump", "--stream", "--tree", str(request.root_pid), "--leave-running"]  # or frozen, if it was
        arguments += ["--images-dir", str(self._images), "--work-dir", str(request.workdir)]
        arguments += ["--log-file", LOG_NAME, "-v3", "--root", str(request.root)]
        arguments += ["--manage-cgroups=" + request.manage_cgroups, "--ghost-limit", str(_GHOST_BYTES)]
        arguments += ["--network-lock", "nftables", "--timeout", str(max(1, round(request.timeout_seconds)))]
        if request.freeze_cgroup:
            arguments += ["--freeze-cgroup", str(request.freeze_cgroup)]
        arguments += ["--tcp-established", "--file-locks", "--link-remap"]  # the last one: see `link_remap_check`
        if request.ext_unix_sk:
            arguments.append("--ext-unix-sk")
        if request.has_outside_master:
            arguments.append("--shell-job")
        if can_skip_pending_connections(request.root_pid):
            arguments.append("--skip-in-flight")
        for item in (*request.externals, *current_terminals.list_external_terminals(request.root_pid)):
            arguments += ["--external", item]
        return arguments

    def _signal_stop(self) -> None:
        os.eventfd_write(self._stop, 1)

    def _wait(self, criu: subprocess.Popen[bytes]) -> int:
        """Return CRIU's exit status, negative if a signal ended it. Stops CRIU when it must not proceed."""
        ended = os.pidfd_open(criu.pid)
        waiter = select.poll()
        waiter.register(ended, select.POLLIN)
        waiter.register(self._stop, select.POLLIN)
        ready = self._wait_with_watchdog(waiter, criu.pid)
        if ended not in ready:
            waiter.unregister(self._stop)
            if not waiter.poll(_ORDERLY_SECONDS * 1000):
                if self._request.freeze_cgroup:
                    request_freeze(self._request.freeze_cgroup)  # nothing runs until the cleanup has finished
                criu.kill()
                waiter.poll()
        os.close(ended)
        # before CRIU is reaped, while the number is still its own: a killed CRIU leaves helpers, some of them stopped
        os.killpg(criu.pid, signal.SIGKILL)
        return criu.wait()

    def _wait_with_watchdog(self, waiter: select.poll, criu: int) -> dict[int, int]:
        """Wait for events. Cancels the dump at its deadline, or without progress."""
        request = self._request
        deadline = time.monotonic() + request.timeout_seconds
        progress = StallDetector(
            criu, request.workdir / LOG_NAME, self._pids, stream=self._receiver, stall_seconds=request.stall_seconds
        )
        while True:
            left = deadline - time.monotonic()
            if ready := dict(waiter.poll(max(0.0, min(left, progress.check_interval_seconds)) * 1000)):
                return ready
            if time.monotonic() >= deadline:
                self.cancel(f"the dump did not end within {request.timeout_seconds:g} s")
                return {}
            if stall := progress.find_stall():
                self._stall = stall
                self.cancel(stall.why)
                return {}

    def _pids(self) -> list[int]:
        request = self._request
        return pids_in_cgroup(request.freeze_cgroup) if request.freeze_cgroup else process_tree(request.root_pid)

    def _clean_up(self, status: int) -> None:
        request = self._request
        if status < 0:
            undo_killed_dump(self._toolchain, self._pids(), request.workdir / LOG_NAME)
        stop_again(request.workdir)
        if request.freeze_cgroup:
            thaw(request.freeze_cgroup)

    def _dump_error_for(self, status: int) -> DumpError:
        found = explain_criu_exit(self._request.workdir / LOG_NAME, status, self._request.workdir / "criu.stderr")
        if self._receiver.failure:
            message = f"the snapshot could not be stored: {self._receiver.failure}"
            return DumpError(message, remedy="the processes run on", evidence=found.evidence)
        if self._stall:
            return DumpInterruptedError(self._stall.why, remedy="the processes run on", evidence=self._stall.evidence)
        if self._why_stopped:
            return DumpError(self._why_stopped, remedy="the processes run on", evidence=found.evidence)
        kind = DumpInterruptedError if status < 0 or found.passes else DumpError
        return kind(found.message, remedy=found.remedy, evidence=found.evidence)


def spare_from_oom_killer(pid: int) -> None:
    """Make CRIU the last choice: it is small, and killing it can harm the workload (see `killed_dump_cleanup`).

    But not exempt: in a control group at its limit without any process to kill (-1000), processes wait forever.
    """
    with contextlib.suppress(PermissionError, FileNotFoundError, ProcessLookupError):  # a capability; ended
        Path(f"/proc/{pid}/oom_score_adj").write_text("-999")


def _socket_directory() -> Path:
    """Return CRIU's images directory: it has the stream's socket, whose path is limited to 107 characters."""
    _SOCKETS.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=_SOCKETS))


def dump(toolchain: Toolchain, request: DumpRequest, sink: ImageSink) -> DumpResult:
    """Dump the tree into the sink; see `Dump.run`."""
    return Dump(toolchain, request, sink).run()
