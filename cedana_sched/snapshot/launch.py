"""Starts a job in namespaces that CRIU can dump, and CRIU in a mount namespace where it can restore them.

Both need a process that changes its own namespaces and then execs another program, so the caller must be
single-threaded: it forks itself. A job is its child, as a restored job is (`criu restore --restore-sibling`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from cedana_sched.model.errors import CedanaSchedError, SnapshotError
from cedana_sched.snapshot import syscalls
from cedana_sched.snapshot.external_mounts import Externals
from cedana_sched.snapshot.job_terminal import COMMAND_PREFIX, MASTER_DESCRIPTOR, open_job_terminal

_FAILED = 125  # as in `env` and `timeout`: could not even start

OpenOutput = Callable[[str, str], int]
"""Opens an output file in the job's namespaces: gets its stream (`stdout`, `stderr`) and its path, and returns a
descriptor. Raises OSError or CedanaSchedError."""


class Job(msgspec.Struct, frozen=True, tag=True):
    """A command to run as a job."""

    command: tuple[str, ...]
    tini: str
    """Path of the static tini that becomes PID 1 of the job: it reaps orphans and forwards signals."""
    mount_point: str
    """An empty directory of the host where the job's root is assembled; used only in the job's namespace."""
    externals: Externals = Externals()
    environment: dict[str, str] = {}
    directory: str = "/"
    stdout: str = "/dev/null"
    stderr: str = "/dev/null"
    """Files to which the job's output is appended, by their path in the host (the same inside)."""
    cgroups: tuple[str, ...] = ()
    """Directories of the job's initial cgroups: one for v2, one per hierarchy for v1."""
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    has_terminal: bool = False
    """Whether the job's standard streams are a terminal of its own, instead of files."""


class StartedJob(NamedTuple):
    """A job that has started."""

    pid: int
    """Of its tini, a child of this process: the caller reaps it."""
    terminal: int | None
    """The master of its terminal, which the caller closes; None if it has no terminal."""


class _Failure(msgspec.Struct, frozen=True):
    """Why the process of a job did not become the job."""

    message: str
    remedy: str = ""


class RestorerPlacement(msgspec.Struct, frozen=True):
    """Where a CRIU can restore a job: in the job's cgroups, and with a root for the job's mounts."""

    mount_point: str | None
    """An empty directory; the host's root filesystem is bound to it in a mount namespace of CRIU's own."""
    cgroups: tuple[str, ...] = ()


def open_for_appending(_stream: str, path: str) -> int:
    """Open an output file with this process's own rights."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def start(job: Job, open_output: OpenOutput = open_for_appending) -> StartedJob:
    """Start the job within milliseconds.

    Only for a single-threaded process, which forks itself.

    Raises:
        OSError, SnapshotError: a namespace, a mount, a cgroup or a file is unavailable.
    """
    reader, writer = os.pipe()  # close-on-exec: end of file means that the exec succeeded
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = syscalls.clone(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC)
        if pid == 0:
            os.close(reader)
            _exec_job(job, open_output, writer, theirs)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            failure = pipe.read()
        if failure:
            os.waitpid(pid, 0)
            why = msgspec.json.decode(failure, type=_Failure)
            raise SnapshotError(why.message, remedy=why.remedy)
        return StartedJob(pid, socket.recv_fds(ours, 1, 1)[1][0] if job.has_terminal else None)


def interpreter_environment() -> dict[str, str]:
    """Return an environment in which a fresh interpreter imports this same package."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def pivot_to_job_root(mount_point: str, externals: Externals) -> None:
    """Set up the mounts that `externals` describes, in this process's own namespaces, and pivot into them."""
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("/", mount_point, flags=syscalls.MS_BIND)
    safe = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    for path in sorted(externals.mounts):
        syscalls.mount(path, mount_point + path, flags=syscalls.MS_BIND)
    syscalls.mount("proc", f"{mount_point}/proc", "proc", safe)
    syscalls.mount("sysfs", f"{mount_point}/sys", "sysfs", safe)
    devpts = "newinstance,ptmxmode=0666,mode=0620,gid=5"
    syscalls.mount("devpts", f"{mount_point}/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, devpts)
    syscalls.mount("shm", f"{mount_point}/dev/shm", "tmpfs", safe & ~syscalls.MS_NOEXEC, "mode=1777")  # noqa: S108
    if Path(mount_point, "dev/mqueue").is_dir():  # minimal machines have none; the job's IPC namespace works without
        syscalls.mount("mqueue", f"{mount_point}/dev/mqueue", "mqueue", safe)
    os.chdir(mount_point)
    syscalls.pivot_root(".", ".")  # stacks the old root on the new one: pivot_root(2), "pivot_root(".", ".")"
    syscalls.umount_detached(".")
    os.chdir("/")


def _exec_job(job: Job, open_output: OpenOutput, failures: int, terminal: socket.socket) -> None:
    """Become the job. Failures are written to `failures`; the master of its terminal is sent to `terminal`."""
    failures = fcntl.fcntl(failures, fcntl.F_DUPFD_CLOEXEC, MASTER_DESCRIPTOR + 1)
    try:
        os.setsid()
        _join_cgroups(job.cgroups)
        pivot_to_job_root(job.mount_point, job.externals)
        command = job.command
        if job.has_terminal:
            terminal = socket.socket(fileno=fcntl.fcntl(terminal, fcntl.F_DUPFD_CLOEXEC, MASTER_DESCRIPTOR + 1))
            open_job_terminal(job.uid)
            socket.send_fds(terminal, [b"."], [MASTER_DESCRIPTOR])
            command = COMMAND_PREFIX + command
        else:
            _redirect_standard_streams(job, open_output)
        os.chdir(job.directory)
        tini = os.open(job.tini, os.O_PATH | os.O_CLOEXEC)  # its folder may be inaccessible to the job's user
        os.setgroups(job.groups)
        os.setgid(job.gid)
        os.setuid(job.uid)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would inherit that
        os.execve(tini, ["tini", "-g", "--", *command], job.environment)  # noqa: S606
    except CedanaSchedError as error:
        _exit_with(failures, _Failure(error.message, error.remedy))
    except OSError as error:
        _exit_with(failures, _Failure(str(error)))


def _exit_with(failures: int, failure: _Failure) -> NoReturn:
    os.write(failures, msgspec.json.encode(failure))
    os._exit(_FAILED)


def prepare_restorer_process(task: RestorerPlacement) -> None:
    """Set up the process that then execs CRIU (see `RestorerPlacement`)."""
    _join_cgroups(task.cgroups)
    if task.mount_point:
        syscalls.unshare(syscalls.CLONE_NEWNS)  # CRIU's mounts vanish with the namespace in any case
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("/", task.mount_point, flags=syscalls.MS_BIND)


def _join_cgroups(cgroups: tuple[str, ...]) -> None:
    for cgroup in cgroups:
        Path(cgroup, "cgroup.procs").write_text("0")  # 0 is the writer itself


def _redirect_standard_streams(job: Job, open_output: OpenOutput) -> None:
    inputs = os.open("/dev/null", os.O_RDONLY)
    streams = ((0, inputs), (1, open_output("stdout", job.stdout)), (2, open_output("stderr", job.stderr)))
    for number, descriptor in streams:
        os.dup2(descriptor, number)
    for _, descriptor in streams:
        if descriptor not in (0, 1, 2):
            os.close(descriptor)
