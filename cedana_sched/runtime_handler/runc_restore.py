"""`create` of a restored container: applies its files, and calls `runc restore` instead of `runc create`.

`runc restore` uses the new pod's bundle: its network, cgroup, mounts and log pipes. runc finds CRIU in PATH, which the
handler's launcher has set.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cedana_sched.runtime_handler.held_processes import (
    HeldProcesses,
    RestoredProcessesError,
    frozen_group,
    restored_processes,
    write_action_script,
)
from cedana_sched.runtime_handler.kernel import detach_mounts_below, die_with_parent, unmount_lazily
from cedana_sched.runtime_handler.layer import LayerError
from cedana_sched.runtime_handler.outside_file_rewind import (
    ChangePolicy,
    FilesRanAheadError,
    compare_with_record,
    rewind_files,
)
from cedana_sched.runtime_handler.plan import ContainerPlan, ContainerResult
from cedana_sched.runtime_handler.posix_lock_restore import retake_process_locks
from cedana_sched.runtime_handler.progress_signs import LOOKS, ProgressSigns
from cedana_sched.runtime_handler.restore_verification import check_before_first_instruction
from cedana_sched.runtime_handler.rootfs import Rootfs
from cedana_sched.runtime_handler.shim_command_line import CreateCall
from cedana_sched.runtime_handler.shortage_retries import is_shortage, retry_through_shortage

RESTORED = "cedana-restored"
"""A file among runc's state of a restored container, with the path of its result: the `start` that follows only
thaws the container and publishes the result."""
LOG = "restore.log"
TOO_LONG = 124
"""Exit status of a program that was ended at its timeout, as in timeout(1)."""
STALLED = 123
"""Exit status of a program that was ended for lack of progress."""
COMPARISON_SECONDS = 10.0
"""How long the comparison of files is retried: an error of their file system says nothing about the snapshot."""
LEAST_SECONDS = 0.01
"""Seconds for a restore whose time is already spent; 0 would mean no bound."""

_CONFIGURATION = "org.criu.config"
"""Annotation by which runc passes a configuration file on to CRIU."""
_TAIL_BYTES = 64 << 10
_TAIL_LINES = 20
_DEATH_SECONDS = 5.0
_HARMLESS = re.compile(r"rlimit: Can't setup RLIMIT_NOFILE|Unable to open .*kdat")


def restore_with_runc(
    runc: str,
    call: CreateCall,
    plan: ContainerPlan,
    spec: dict[str, Any],
    *,
    deadline: float,
    clean_after_failure: Callable[[ContainerResult], bool],
    changes: ChangePolicy,
) -> ContainerResult:
    """Restore a container instead of creating it; one retry if CRIU made no progress, within the deadline.

    Args:
        runc: path of the real runc.
        call: the shim's call.
        plan: has the paths of images and files.
        spec: the bundle's config.json, which is rewritten.
        deadline: by the monotonic clock.
        clean_after_failure: whether to reset the bundle, after this failure, to the state that `create` expects.
        changes: what applies to changed files outside the snapshot.

    Raises:
        OSError: the node has a shortage; see `shortage_retries`. Or it is not ready, which does not indict the
        snapshot.
    """
    rootfs = Rootfs(_rootfs_path(call, spec))
    status, result = _attempt_restore(runc, call, plan, spec, rootfs, deadline, changes)
    if status == STALLED and deadline - time.monotonic() > plan.stall_seconds and not may_have_resumed_processes(plan):
        remove_container(runc, call, call.id)
        _clean_rootfs(rootfs)
        status, result = _attempt_restore(runc, call, plan, spec, rootfs, deadline, changes)
    if result.restored or not clean_after_failure(result):
        return result
    remove_container(runc, call, call.id)
    return result._replace(why=result.why + _clean_rootfs(rootfs))


def may_have_resumed_processes(plan: ContainerPlan) -> bool:
    """Return whether CRIU may have released the processes: what they did must not happen twice."""
    log = f"{plan.work}/{LOG}"
    return any("Tasks resumed" in line for line in _read_lines_since(log, max(0, _file_size(log) - _TAIL_BYTES)))


def _attempt_restore(
    runc: str,
    call: CreateCall,
    plan: ContainerPlan,
    spec: dict[str, Any],
    rootfs: Rootfs,
    deadline: float,
    changes: ChangePolicy,
) -> tuple[int, ContainerResult]:
    """Run `runc restore` once; return its status, and the container's result."""
    os.makedirs(plan.work, mode=0o700, exist_ok=True)
    log = f"{plan.work}/{LOG}"
    with suppress(FileNotFoundError):
        os.unlink(log)
    try:
        if plan.layer:
            rootfs.unpack_over_image(plan.layer)
    except (OSError, LayerError) as error:
        if is_shortage(error):
            raise
        return 0, ContainerResult(
            restored=False, why=f"its changed files could not be written into the container: {error}"
        )
    _configure_criu(call, plan, spec)
    log_size = _file_size(call.log)
    watch = (log, plan.stall_seconds)
    seconds = max(LEAST_SECONDS, deadline - time.monotonic())
    status = run_program(runc, _restore_arguments(call, plan), seconds=seconds, watch=watch)
    files_changed = False
    if status == 0:
        try:
            with restored_processes(plan.work) as processes:
                notes = _check_and_keep_frozen(processes, plan, spec, changes)
        except (RestoredProcessesError, OSError) as error:
            why, files_changed = str(error), isinstance(error, FilesRanAheadError)
        else:
            return status, ContainerResult(restored=True, log=log, id=call.id, notes=notes)
    elif status == TOO_LONG:
        why = f"the restore did not end within {plan.seconds:g} s"
    elif status == STALLED:
        why = f"CRIU made no progress for {plan.stall_seconds:g} s"
    else:
        why = _last_error(call.log, log_size) or f"runc restore ended with status {status}"
    if status in (TOO_LONG, STALLED):
        detach_mounts_below(plan.work)
    tail = _criu_log_excerpt(log) if status not in (0, TOO_LONG, STALLED) else ()  # the cause is not in CRIU's log
    kept = log if _file_size(log) else None
    return status, ContainerResult(restored=False, why=why, log=kept, tail=tail, files_changed=files_changed)


def _check_and_keep_frozen(
    processes: HeldProcesses, plan: ContainerPlan, spec: dict[str, Any], changes: ChangePolicy
) -> tuple[str, ...]:
    """Do all that precedes the first instruction; files are truncated last. Return notes on changed files."""
    check_before_first_instruction(processes, plan, spec)
    comparison = retry_through_shortage(
        lambda: compare_with_record(processes, plan.images, changes), COMPARISON_SECONDS
    )
    retake_process_locks(processes, plan.locks)
    notes = rewind_files(processes, comparison)
    processes.keep_frozen()  # until `start`, because a created container must not run before
    return notes


def mark_restored(call: CreateCall, result: str, work: str) -> None:
    """Reduce `start` to a thaw of the restored container and the publication of the result at this path.

    `work` is the work directory of the restore.
    """
    with open(f"{call.root}/{call.id}/{RESTORED}", "w", encoding="utf-8") as file:
        file.write(f"{result}\n{frozen_group(work)}\n")


def remove_container(runc: str, call: CreateCall, container_id: str) -> None:
    """End a container of the pod, this call's or another one, and remove its state.

    A killed `runc restore` leaves the container's root mounted in its state directory, and `runc delete` would delete
    every file in the mount.
    """
    with suppress(OSError):  # not mounted there
        unmount_lazily(f"{call.root}/{container_id}/criu-root")
    run_program(runc, [*call.global_options, "delete", "--force", container_id], quiet=True)


def run_program(
    program: str,
    arguments: list[str],
    *,
    quiet: bool = False,
    seconds: float = 0,
    watch: tuple[str, float] | None = None,
) -> int:
    """Run a program with this process's standard streams, which are the container's, or without any.

    Args:
        program: its path.
        arguments: its arguments.
        quiet: without streams.
        seconds: timeout; 0: none.
        watch: CRIU's log, and for how many seconds the program and its descendants may make no progress.

    Returns:
        Its exit status; 128 plus the signal's number if one killed it; TOO_LONG or STALLED if it was ended, with all
            its
        descendants.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            die_with_parent(parent)
            if quiet:
                nothing = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(nothing, stream)
            os.execv(program, [program, *arguments])  # noqa: S606 - no shell, on purpose
        finally:
            os._exit(127)
    ended = TOO_LONG
    try:
        ended = _wait_child(child, seconds, watch)
    finally:  # without free descriptors it cannot be watched, and must not run unwatched
        if ended:
            _kill_tree(child)
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return ended or (code if code >= 0 else 128 - code)


def _wait_child(child: int, seconds: float, watch: tuple[str, float] | None) -> int:
    """Wait for a child; return 0 once it has ended, else why it must be ended: TOO_LONG or STALLED."""
    log, stall = watch or ("", 0.0)
    signs = ProgressSigns(child, log, lambda: _process_tree_of(child)) if stall else None
    lived = began = time.monotonic()
    descriptor = os.pidfd_open(child)
    waiter = select.poll()
    waiter.register(descriptor, select.POLLIN)
    try:
        while True:
            now = time.monotonic()
            waits = [began + seconds - now] if seconds else []
            waits += [stall / LOOKS] if stall else []
            if waiter.poll(max(0.0, min(waits)) * 1000 if waits else None):
                return 0
            now = time.monotonic()
            if seconds and now >= began + seconds:
                return TOO_LONG
            if signs is None or signs.has_progressed():
                lived = now
            elif now - lived >= stall:
                return STALLED
    finally:
        os.close(descriptor)


def _process_tree_of(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for process in found:
        found += _child_processes_of(process)
    return found


def _child_processes_of(process: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
        for thread in os.listdir(f"/proc/{process}/task"):
            with (
                suppress(FileNotFoundError, ProcessLookupError),
                open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as children,
            ):
                found += map(int, children.read().split())
    return found


def _kill_tree(pid: int) -> None:
    """Kill a process and its descendants, and wait until all have ended: they hold mounts until then.

    The processes are stopped first, top down, so that none forks meanwhile.
    """
    found = [pid]
    for process in found:
        with suppress(ProcessLookupError):  # ended meanwhile
            os.kill(process, signal.SIGSTOP)
        found += _child_processes_of(process)
    for process in reversed(found):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    _wait_exits(found)


def _wait_exits(processes: list[int]) -> None:
    """Wait by pidfd until each has ended; bounded, because one may hang in the kernel."""
    deadline = time.monotonic() + _DEATH_SECONDS
    for process in processes:
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        waiter = select.poll()
        waiter.register(descriptor, select.POLLIN)
        waiter.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(descriptor)


def _restore_arguments(call: CreateCall, plan: ContainerPlan) -> list[str]:
    return [
        *call.global_options, "restore", "--detach", *call.options,
        "--image-path", plan.images, "--work-path", plan.work,
        "--manage-cgroups-mode", "ignore", "--file-locks", call.id,
    ]  # fmt: skip


def _configure_criu(call: CreateCall, plan: ContainerPlan, spec: dict[str, Any]) -> None:
    file = f"{plan.work}/criu.conf"
    with open(file, "w", encoding="utf-8") as configuration:
        configuration.write("".join(f"{line}\n" for line in plan.criu))
        configuration.write(f"action-script {write_action_script(plan.work)}\n")
    spec.setdefault("annotations", {})[_CONFIGURATION] = file
    write_specification(call.bundle, spec)


def write_specification(bundle: str, spec: dict[str, Any]) -> None:
    """Replace the bundle's specification."""
    written = f"{bundle}/config.json.new"
    with open(written, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        json.dump(spec, file)
    os.replace(written, f"{bundle}/config.json")


def _rootfs_path(call: CreateCall, spec: dict[str, Any]) -> str:
    return os.path.join(call.bundle, spec.get("root", {}).get("path", "rootfs"))


def _clean_rootfs(rootfs: Rootfs) -> str:
    try:
        rootfs.remove_unpacked()
    except (OSError, LayerError) as error:
        return f"; the container keeps files of the snapshot: {error}"
    return ""


def _last_error(log: str | None, since: int) -> str | None:
    """Return runc's last error since an offset of its log, which has a JSON object per line."""
    found = None
    for line in _read_lines_since(log, since):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("level") == "error":
            found = str(entry.get("msg", "")).strip()
    return found


def _criu_log_excerpt(log: str) -> tuple[str, ...]:
    """Return the errors and the last lines of CRIU's log, for `explain`."""
    lines = _read_lines_since(log, max(0, _file_size(log) - _TAIL_BYTES))
    errors = [line for line in lines if re.search(r"\bError\b", line) and not _HARMLESS.search(line)]
    rest = [line for line in lines[-4:] if line not in errors]
    return tuple((errors + rest)[:_TAIL_LINES])


def _read_lines_since(path: str | None, since: int) -> list[str]:
    if path is None:
        return []
    try:
        with open(path, "rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _file_size(path: str | None) -> int:
    try:
        return os.path.getsize(path) if path else 0
    except OSError:
        return 0
