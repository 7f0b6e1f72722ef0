"""The supervisor of one run: `python -m cedana_sched.local.shim RUN_DIR`, a process that outlives the engine.

It starts or restores the job in the run's control groups, becomes its parent, waits for its end, records it, and
removes the groups. What it does is in `run_directory`'s files at every moment, so the engine may be killed and come
back, and the supervisor itself may be killed: then the engine ends what it left. Light on purpose: one such process
per job, standard library only; building namespaces and driving CRIU is left to short-lived programs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from cedana_sched.local.cgroups import RunCgroup
from cedana_sched.local.kernel import become_child_subreaper
from cedana_sched.local.processes import ProcessId
from cedana_sched.local.run_directory import (
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
from cedana_sched.model.errors import CedanaSchedError

PROGRAMS = {"start": "cedana_sched.snapshot.launch", "restore": "cedana_sched.local.restorer"}
"""By mode, the module that brings the job to life: the task as JSON on its standard input, the PID of the job's first
process, by then a child of the supervisor, on its standard output; else an exit status and, last on its standard
error, the reason."""

_SIGNAL_BASE = 128


class LaunchError(Exception):
    """The job did not come to life."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def main(arguments: list[str]) -> int:
    os.chdir("/")
    directory = RunDirectory(Path(arguments[1]))
    lock = directory.lock()  # kept until this process ends
    spec = directory.spec()
    if lock is None or spec is None or directory.exit() is not None:
        print(f"{directory.path}: there is nothing to do for another supervisor", file=sys.stderr)
        return 0
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stay)
    supervise(directory, spec)
    return 0


def supervise(directory: RunDirectory, spec: RunSpec) -> None:
    """Bring the job to life, wait for its end, and leave nothing but the records of it."""
    me = ProcessId.of(os.getpid())
    group = RunCgroup(spec.cgroup)
    directory.write_state(RunState(PREPARING, me))
    try:
        become_child_subreaper()
        init, notes = _bring_to_life(spec, group)
    except LaunchError as error:
        _end(directory, group, ExitRecord(time.time(), failure=error.failure), RunState(FAILED, me))
        return
    running = RunState(RUNNING, me, ProcessId.of(init), time.time(), tuple(notes))
    directory.write_state(running)
    record = _exit_record(_wait_for(init), group)
    _end(directory, group, record, running._replace(phase=EXITED))


def _bring_to_life(spec: RunSpec, group: RunCgroup) -> tuple[int, list[str]]:
    """The PID of the job's first process, and what this machine could not do for it."""
    restoring = spec.mode == "restore"
    try:
        supervisors = RunCgroup(spec.supervisors)
        supervisors.create()
        supervisors.join()
        group.create()
        notes = [] if restoring else group.limit(spec.limits)
        init = _launch(spec, group)
        if restoring:  # CRIU works in the job's groups too, and must be neither throttled nor short of memory
            notes = group.limit(spec.limits)
    except CedanaSchedError as error:
        raise LaunchError(Failure(error.message, error.remedy, error.evidence)) from error
    except OSError as error:
        raise LaunchError(Failure(f"the run cannot be prepared: {error}", "run the engine as root")) from error
    return init, notes


def _launch(spec: RunSpec, group: RunCgroup) -> int:
    task = spec.task | {"cgroups": [str(path) for path in group.paths]}
    done = subprocess.run(
        [sys.executable, "-P", "-m", PROGRAMS[spec.mode]],
        input=json.dumps(task).encode(), capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return int(done.stdout)
    lines = done.stderr.decode(errors="replace").splitlines()
    if done.stdout:
        found = json.loads(done.stdout)
        raise LaunchError(Failure(found["message"], found["remedy"], tuple(found["evidence"])))
    reason = lines[-1] if lines else f"exit status {done.returncode}"
    raise LaunchError(Failure(f"the job could not be started: {reason}", evidence=tuple(lines)[-20:]))


def _wait_for(init: int) -> int:
    """Reap children until the job's first one has ended; its wait status. The kernel ends its namespace with it."""
    while True:
        pid, status = os.wait()
        if pid == init:
            return status


def _exit_record(status: int, group: RunCgroup) -> ExitRecord:
    code: int | None = os.waitstatus_to_exitcode(status)
    number = None
    if code is not None and code < 0:
        number, code = -code, None
    elif code is not None and code > _SIGNAL_BASE and code - _SIGNAL_BASE in set(signal.Signals):
        number, code = code - _SIGNAL_BASE, None
    usage = group.usage()
    return ExitRecord(
        at=time.time(),
        exit_code=code,
        signal=signal.Signals(number).name if number else None,
        oom_killed=number == signal.SIGKILL and group.oom_kills() > 0,
        cpu_seconds=usage.cpu_seconds,
        max_memory_bytes=usage.peak_memory_bytes,
    )


def _end(directory: RunDirectory, group: RunCgroup, record: ExitRecord, state: RunState) -> None:
    """Record the end first: if this process is killed now, the engine clears the rest away."""
    directory.write_exit(record)
    directory.write_state(state)
    try:
        group.kill()
        group.remove()
    except CedanaSchedError as error:
        print(error, file=sys.stderr)  # the engine tries again, and tells a person
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass  # a job that failed to start, and what CRIU left: PID 1 of some machines reaps nothing


def _stay(number: int, frame: object) -> None:
    """A supervisor ends with its job only. A handler, not SIG_IGN: children would inherit that."""


if __name__ == "__main__":
    sys.exit(main(sys.argv))
