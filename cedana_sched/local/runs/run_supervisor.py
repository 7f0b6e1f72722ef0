"""The supervisor of one run, a process that outlives the engine.

`python -m cedana_sched.local.runs.run_supervisor RUN_DIR`. The supervisor starts or restores the job in the run's
control groups as its parent, waits for its end, records the end, and removes the groups. `run_directory`'s files always
have the current state, so the engine may be killed and restarted. If the supervisor itself is killed, the engine
terminates the rest. The supervisor is single-threaded, and forks the job itself.

Supervisors are forked from a preloaded process (`supervisor_forkserver`), so a job does not wait for an interpreter.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from msgspec.structs import replace

from cedana_sched.local.runs import terminal_protocol
from cedana_sched.local.runs.child_subreaper import become_child_subreaper
from cedana_sched.local.runs.launch_spec import RestoreTask
from cedana_sched.local.runs.output_file import OutputUser, open_output_file
from cedana_sched.local.runs.process_identity import ProcessId
from cedana_sched.local.runs.run_directory import (
    EXITED,
    FAILED,
    PREPARING,
    RUNNING,
    ExitRecord,
    Failure,
    RunDirectory,
    RunSpec,
    RunState,
)
from cedana_sched.local.runs.terminal_keeper import start_keeper
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.snapshot.cgroups import Cgroup
from cedana_sched.snapshot.launch import start
from cedana_sched.snapshot.restore import restore

_SIGNAL_BASE = 128
_KEEPER_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0


def main(path: Path) -> None:
    """Run the supervisor of a run directory to the end of its run."""
    os.chdir("/")
    Path("/proc/self/comm").write_text("cedana-shim")  # the name in `ps` and `top`
    directory = RunDirectory(path)
    lock = directory.try_to_lock()  # held until this process ends
    spec = directory.read_spec()
    if lock is None or spec is None or directory.read_exit() is not None:
        print(f"{directory.path}: there is nothing to do for another supervisor", file=sys.stderr)
        return
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore_signal)
    supervise(directory, spec)


def supervise(directory: RunDirectory, spec: RunSpec) -> None:
    """Start the job, wait for its end, and leave nothing but its records."""
    me = ProcessId.from_pid(os.getpid())
    group = Cgroup(spec.cgroup)
    directory.write_state(RunState(PREPARING, me))
    keeper = None
    try:
        become_child_subreaper()
        init, terminal, notes = _start_or_restore(spec, group)
        if terminal is not None:
            keeper = _start_terminal_keeper(directory, spec, group, init, terminal)
    except CedanaSchedError as error:
        failure = Failure.from_error(error)
        _record_and_clean_up(directory, group, ExitRecord(time.time(), failure=failure), RunState(FAILED, me))
        return
    except OSError as error:
        failure = Failure(f"the job could not be started: {error}", "run the engine as root")
        _record_and_clean_up(directory, group, ExitRecord(time.time(), failure=failure), RunState(FAILED, me))
        return
    running = RunState(RUNNING, me, ProcessId.from_pid(init), time.time(), tuple(notes))
    _retry_write(lambda: directory.write_state(running))
    record = _exit_record(_wait_for_init(init), group)
    if keeper is not None:
        _wait_for_keeper(keeper)
    _record_and_clean_up(directory, group, record, replace(running, phase=EXITED))


def _start_or_restore(spec: RunSpec, group: Cgroup) -> tuple[int, int | None, list[str]]:
    """Start or restore the job.

    Returns:
        The PID of its first process, the master of its terminal if it has one, and notes on limits that could not be
        applied.
    """
    group.create()
    if isinstance(spec.task, RestoreTask):
        request = replace(spec.task.request, cgroups=group.unique_directories)
        result = restore(spec.task.toolchain, request)
        for file in result.truncated:
            _print_to_log(f"{file.path} had grown to {file.was_bytes} bytes, and is truncated to {file.is_bytes}")
        # after the restore: CRIU runs in the job's groups too, and must be neither throttled nor short of memory
        return result.root_pid, result.terminal, group.apply_limits(spec.limits)
    if spec.task is None:
        raise CedanaSchedError("the run has no task", remedy="report this")
    notes = group.apply_limits(spec.limits)
    user = OutputUser(spec.task.uid, spec.task.gid, spec.task.groups)
    started = start(
        replace(spec.task, cgroups=tuple(map(str, group.unique_directories))),
        lambda field, path: open_output_file(field, Path(path), user, spec.engines_folder),
    )
    return started.pid, started.terminal, notes


def _start_terminal_keeper(directory: RunDirectory, spec: RunSpec, group: Cgroup, init: int, terminal: int) -> int:
    """Start the keeper of the job's terminal, before the run counts as started; return its PID."""
    if spec.terminal_output is None:
        raise CedanaSchedError("the run's terminal has no place for its output", remedy="report this")
    output = open_output_file("stdout", spec.terminal_output, _user_of(init), spec.engines_folder)
    with terminal_protocol.listen(directory.path) as listener:
        keeper = start_keeper(terminal, listener, output, init, group.freezer_directory)
    os.close(output)
    os.close(terminal)
    return keeper


def _user_of(init: int) -> OutputUser:
    """Return the user of a restored or started process, our child."""
    try:
        process = psutil.Process(init)
        status = Path(f"/proc/{init}/status").read_text()
        groups = next(line.split()[1:] for line in status.splitlines() if line.startswith("Groups:"))
        return OutputUser(process.uids().real, process.gids().real, tuple(map(int, groups)))
    except (
        FileNotFoundError,
        ProcessLookupError,
        psutil.NoSuchProcess,
    ) as error:  # our child has a status until it is waited for
        raise CedanaSchedError("the run's first process is gone", remedy="report this") from error


def _wait_for_keeper(keeper: int) -> None:
    """Wait until the job's last output is in its file; bounded, because the disk may be full."""
    try:
        descriptor = os.pidfd_open(keeper)
    except ProcessLookupError:
        return
    waiter = select.poll()
    waiter.register(descriptor, select.POLLIN)
    waiter.poll(_KEEPER_SECONDS * 1000)
    os.close(descriptor)


def _wait_for_init(init: int) -> int:
    """Reap children until the job's first process has ended; return its wait status.

    The kernel kills the PID namespace with its first process.
    """
    while True:
        pid, status = os.wait()
        if pid == init:
            return status


def _exit_record(status: int, group: Cgroup) -> ExitRecord:
    code: int | None = os.waitstatus_to_exitcode(status)
    number = None
    if code is not None and code < 0:
        number, code = -code, None
    elif code is not None and code > _SIGNAL_BASE and code - _SIGNAL_BASE in set(signal.Signals):
        number, code = code - _SIGNAL_BASE, None
    usage = group.resource_usage()
    return ExitRecord(
        at=time.time(),
        exit_code=code,
        signal=signal.Signals(number).name if number else None,
        oom_killed=number == signal.SIGKILL and group.oom_kills() > 0,
        cpu_seconds=usage.cpu_seconds,
        max_memory_bytes=usage.peak_memory_bytes,
    )


def _record_and_clean_up(directory: RunDirectory, group: Cgroup, record: ExitRecord, state: RunState) -> None:
    """Record the end before the cleanup: if this process is killed in between, the engine cleans up."""
    try:
        directory.write_exit(record)
    except OSError as error:
        _print_to_log(f"the end of the run is not recorded yet: {error}")
        _kill_and_reap(group)
        _retry_write(lambda: directory.write_exit(record))
    with suppress(OSError):  # the record has the outcome
        directory.write_state(state)
    _kill_and_reap(group)


def _kill_and_reap(group: Cgroup) -> None:
    try:
        group.kill()
        group.remove()
    except CedanaSchedError as error:
        _print_to_log(error)  # the engine retries and logs the failure
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass  # a job that failed to start, and CRIU's children: PID 1 of some machines does not reap


def _print_to_log(words: object) -> None:
    with suppress(OSError):  # the log's disk may be full
        print(words, file=sys.stderr)


def _retry_write(write: Callable[[], None]) -> None:
    """Retry until the disk has room: without a record a run counts as lost, whatever its outcome."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            write()
        except OSError:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            return


def _ignore_signal(number: int, frame: object) -> None:
    """Ignore the signal: a supervisor ends with its job only. A handler, because children would inherit SIG_IGN."""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
