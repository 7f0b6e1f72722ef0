"""Restores the processes of a snapshot from a directory of its images.

The root of the tree becomes a *child of the calling process* (`criu restore --restore-sibling`), which must reap it,
like a job of `launch.start`. CRIU itself is started in the tree's new cgroups, because restored processes inherit them;
the images have no cgroups (`--manage-cgroups=ignore`).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import msgspec

from cedana_sched.model.errors import RestoreError, RetryableError
from cedana_sched.runtime_handler.file_change_rules import OnChange
from cedana_sched.runtime_handler.held_processes import (
    HeldProcesses,
    RestoredProcessesError,
    restored_processes,
    write_action_script,
)
from cedana_sched.runtime_handler.posix_lock_restore import PosixLock, retake_process_locks
from cedana_sched.runtime_handler.progress_signs import STALL_SECONDS
from cedana_sched.runtime_handler.volume_file_comparison import REMEDY, VolumeFiles, find_changed_file, read_record
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.explain import explain_criu_exit, last_lines
from cedana_sched.snapshot.grown_file_truncation import TruncatedFile, truncate_grown_files
from cedana_sched.snapshot.job_terminal import duplicate_master
from cedana_sched.snapshot.launch import RestorerPlacement, interpreter_environment, prepare_restorer_process
from cedana_sched.snapshot.ran_ahead_files import has_to_be_unchanged, require_unchanged_files
from cedana_sched.snapshot.stall_detection import StallDetector

LOG_NAME = "restore.log"
_NOT_ENTERED = 125


class RestoreInterruptedError(RestoreError, RetryableError):
    """The restore was interrupted, or hung; the snapshot is intact, and none of its processes runs."""


class RestoreRequest(msgspec.Struct, frozen=True):
    """Parameters of a restore."""

    images: Path
    """The directory of the images, each under the name of its stream in the dump. If the record of the files that the
    processes held is there (`volume_file_comparison`), the restored ones must hold the same."""
    workdir: Path
    """A directory for this restore only: CRIU's log stays there."""
    mount_point: Path | None = None
    """An empty directory for the tree's new root, as for `launch.Job`; None if the tree has no mount namespace."""
    externals: tuple[str, ...] = ()
    """`--external` items, the same as for the dump."""
    cgroups: tuple[Path, ...] = ()
    """Directories of the target cgroups; new and empty. On failure, the first with a freezer is emptied."""
    locks: tuple[PosixLock, ...] = ()
    """Locks that `remove_posix_locks` removed from the images: the processes acquire them before their first
    instruction."""
    sizes: dict[str, int] = {}
    """Sizes that `remove_sizes` removed from the images, by path: files that are longer now are truncated."""
    on_change: OnChange = OnChange.NONE
    """What follows if files outside the snapshot have changed since: `COLD` and `FAIL` refuse the restore, if it is not
    only `outputs` that have."""
    outputs: tuple[Path, ...] = ()
    """The job's own output files, which only the job writes."""
    has_terminal: bool = False
    """Whether the tree is a job with a terminal (see `job_terminal`)."""
    timeout_seconds: float = 600.0
    stall_seconds: float = STALL_SECONDS
    """Seconds that the restore may go without progress; see `progress`."""


class RestoreResult(msgspec.Struct, frozen=True):
    """A restored, running tree."""

    root_pid: int
    """A child of the calling process."""
    seconds: float
    log: Path
    terminal: int | None = None
    """The master of its terminal, which the caller closes; None if it has no terminal."""
    truncated: tuple[TruncatedFile, ...] = ()
    """Files that had grown since the snapshot."""


def restore(toolchain: Toolchain, request: RestoreRequest) -> RestoreResult:
    """Restore the tree; return when its processes run. Only for a single-threaded process, which forks CRIU itself.

    Raises:
        RestoreInterruptedError: CRIU was killed, or hung.
        FilesChangedError: files outside the snapshot have changed since, and `on_change` decides.
        RestoreError: the processes do not run, and none of them is left; the message has the reason in plain words.
    """
    began = time.monotonic()
    request.workdir.mkdir(parents=True, exist_ok=True)
    pidfile = request.workdir / "restored.pid"
    pidfile.unlink(missing_ok=True)
    log, stderr = request.workdir / LOG_NAME, request.workdir / "criu.stderr"
    log.unlink(missing_ok=True)
    files = _read_files(request)
    is_held = files is not None or bool(request.locks or request.sizes) or request.has_terminal
    is_held = is_held or has_to_be_unchanged(request.on_change)
    try:
        status = _run_criu(toolchain, request, pidfile, stderr, is_held=is_held)
    except RestoreError:
        _clean_up(request, log)
        raise
    if status != 0:
        _clean_up(request, log)
        found = explain_criu_exit(log, status, stderr)
        kind = RestoreInterruptedError if status < 0 else RestoreError
        raise kind(found.message, remedy=found.remedy, evidence=found.evidence)
    root_pid = int(pidfile.read_text())
    terminal, truncated = _complete_held_processes(request, root_pid, files, log) if is_held else (None, ())
    return RestoreResult(root_pid, time.monotonic() - began, log, terminal, truncated)


def _read_files(request: RestoreRequest) -> VolumeFiles | None:
    """Return the record of the files that the processes held; None if there is none."""
    try:
        return read_record(str(request.images))
    except (ValueError, OSError) as error:
        raise RestoreError(str(error), remedy="start it without the snapshot, or from an earlier one") from error


def _complete_held_processes(
    request: RestoreRequest, root_pid: int, files: VolumeFiles | None, log: Path
) -> tuple[int | None, tuple[TruncatedFile, ...]]:
    """Verify the files of the held processes, give these their locks, and truncate what has grown: it cannot be undone.

    Returns:
        The master of their terminal, and the truncated files. The processes may end at any time later.
    """
    try:
        with restored_processes(str(request.workdir)) as processes:
            if files is not None:
                _require_same_files(processes, files)
            require_unchanged_files(processes, request.images, request.on_change, request.outputs)
            terminal = duplicate_master(root_pid) if request.has_terminal else None
            retake_process_locks(processes, request.locks)
            return terminal, tuple(truncate_grown_files(processes, request.sizes))
    except RestoreError:
        _clean_up(request, log)
        raise
    except (RestoredProcessesError, OSError, ValueError) as error:
        _clean_up(request, log)
        raise RestoreError(str(error), remedy="if a file is locked, end what has locked it; then try again") from error


def _require_same_files(processes: HeldProcesses, files: VolumeFiles) -> None:
    if (changed := find_changed_file(files, processes.by_namespace_pid())) is not None:
        raise RestoreError(changed, remedy=f"{REMEDY}, or start it without the snapshot")


def _run_criu(toolchain: Toolchain, request: RestoreRequest, pidfile: Path, stderr: Path, *, is_held: bool) -> int:
    task = RestorerPlacement(
        mount_point=str(request.mount_point) if request.mount_point else None,
        cgroups=tuple(map(str, request.cgroups)),
    )
    environment = interpreter_environment() | toolchain.criu_environment()
    with stderr.open("wb") as output:
        try:
            criu = subprocess.Popen(
                [toolchain.criu, *_criu_arguments(request, pidfile, is_held=is_held)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True,
                preexec_fn=partial(_prepare_criu_process, task),  # noqa: PLW1509  # the caller has no threads
            )  # fmt: skip
        except subprocess.SubprocessError:
            return _NOT_ENTERED  # the reason is in the file, in place of CRIU's own output
        hung = _wait_end(criu.pid, request)
        failed = hung is not None or os.waitid(os.P_PID, criu.pid, os.WEXITED | os.WNOWAIT).si_status  # type: ignore[union-attr]
        if failed:
            os.killpg(criu.pid, signal.SIGKILL)  # before it is reaped: with any helpers that it left
        status = criu.wait()
        if failed:
            _reap_group(criu.pid)
        if hung is not None:
            raise hung
        return status


def _wait_end(criu: int, request: RestoreRequest) -> RestoreError | None:
    """Wait for CRIU's end; return an error if it hangs. `Popen.wait` with a timeout would poll every 50 ms only."""
    descriptor = os.pidfd_open(criu)
    waiter = select.poll()
    waiter.register(descriptor, select.POLLIN)
    log = request.workdir / LOG_NAME
    progress = StallDetector(criu, log, lambda: _restored_pids(request), stall_seconds=request.stall_seconds)
    deadline = time.monotonic() + request.timeout_seconds
    try:
        while not waiter.poll(max(0.0, min(deadline - time.monotonic(), progress.check_interval_seconds)) * 1000):
            if time.monotonic() >= deadline:
                message = f"the restore did not end within {request.timeout_seconds:g} s"
                return RestoreError(message, remedy="allow it more time", evidence=last_lines(log))
            if stall := progress.find_stall():
                return RestoreInterruptedError(
                    stall.why, remedy="see what the processes wait for", evidence=stall.evidence
                )
    finally:
        os.close(descriptor)
    return None


def _restored_pids(request: RestoreRequest) -> list[int]:
    return [pid for cgroup in request.cgroups[:1] for pid in freezer.pids_in_cgroup(cgroup)]


def _reap_group(group: int) -> None:
    """Reap a dead CRIU's helpers: they are children of this process, if that is a subreaper."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)


def _prepare_criu_process(task: RestorerPlacement) -> None:
    try:
        prepare_restorer_process(task)
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        raise


def _criu_arguments(request: RestoreRequest, pidfile: Path, *, is_held: bool) -> list[str]:
    arguments = ["restore", "--restore-detached", "--restore-sibling", "--pidfile", str(pidfile)]
    arguments += ["--images-dir", str(request.images), "--work-dir", str(request.workdir)]
    arguments += ["--log-file", LOG_NAME, "-v4", "--manage-cgroups=ignore"]
    if request.mount_point:
        arguments += ["--root", str(request.mount_point)]
    if is_held:
        group = str(request.cgroups[0]) if request.cgroups else None
        arguments += ["--action-script", write_action_script(str(request.workdir), group)]
    arguments += ["--tcp-established", "--file-locks", "--link-remap"]
    for item in request.externals:
        arguments += ["--external", item]
    return arguments


def _clean_up(request: RestoreRequest, log: Path) -> None:
    """Kill the processes that CRIU has created, and reap their root, which is a child of this process."""
    for cgroup in request.cgroups[:1]:
        freezer.kill(cgroup)
    text = log.read_text(errors="replace") if log.exists() else ""
    for pid in re.findall(r"PID: real (\d+) virt", text)[:1]:
        try:
            os.waitpid(int(pid), 0)
        except ChildProcessError:
            continue  # CRIU has reaped it, or never created it
