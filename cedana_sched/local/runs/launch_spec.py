"""The runtime's spec of a job, and its translation into the task of a supervisor.

Validates the spec against this machine before the run, by field: user, directory, command.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
from pathlib import Path

import msgspec

from cedana_sched.model.errors import UsageError
from cedana_sched.model.policy import OnVolumeChange
from cedana_sched.snapshot.cgroups import Limits
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.external_mounts import Externals
from cedana_sched.snapshot.job_terminal import SETSID
from cedana_sched.snapshot.launch import Job
from cedana_sched.snapshot.restore import RestoreRequest

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


DEFAULT_TERM = "xterm"
"""The type of a terminal whose job brings no TERM, as in container runtimes."""
LOCALE_FILES = (Path("/etc/default/locale"), Path("/etc/locale.conf"))
"""Where Debian, and where others, keep the machine's language."""


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of a job's processes. Paths are absolute; None in `cpus`, `memory_bytes` or `processes` is no limit."""

    argv: tuple[str, ...]
    stdout: Path
    stderr: Path
    engines_folder: Path | None = None
    """The folder of those output files that the engine chose, where only root creates any; None: it chose none."""
    environment: dict[str, str] = {}
    """Variables added to PATH, HOME, USER, LOGNAME, SHELL and LANG, or overriding them."""
    directory: Path | None = None
    """The working directory; None is the user's home."""
    user: str | None = None
    """A user name or uid; None is the engine's own user."""
    cpus: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    on_volume_change: OnVolumeChange = OnVolumeChange.REWIND
    """What follows if the job's files ran ahead of the snapshot that it is restored from."""
    has_terminal: bool = False
    """Whether the standard streams are a terminal; its output goes to `stdout`."""

    @property
    def limits(self) -> Limits:
        return Limits(self.cpus, self.memory_bytes, self.processes)


class RestoreTask(msgspec.Struct, frozen=True, tag=True):
    """A restore for a supervisor, which adds the run's control groups to the request."""

    toolchain: Toolchain
    request: RestoreRequest


def create_launch_task(spec: LaunchSpec, tini: Path, mount_point: Path, externals: Externals) -> Job:
    """Return the task for `cedana_sched.snapshot.launch`.

    Raises:
        UsageError: a field of the job is invalid on this machine; the error names it.
    """
    account = _user_account(spec.user)
    environment = _account_environment(account) | _terminal_environment(spec) | spec.environment
    directory = spec.directory or Path(account.pw_dir)
    if not directory.is_dir():
        raise UsageError("cwd", str(directory), "is no directory of this machine", remedy="name one that exists")
    _require_command(spec.argv, environment, directory)
    if spec.has_terminal and not os.access(SETSID, os.X_OK):
        remedy = "install util-linux, or submit the job without --tty"
        raise UsageError("tty", "true", f"needs {SETSID}, which this machine lacks", remedy=remedy)
    return Job(
        command=spec.argv,
        tini=str(tini),
        mount_point=str(mount_point),
        externals=externals,
        environment=environment,
        directory=str(directory),
        stdout=str(spec.stdout),
        stderr=str(spec.stderr),
        uid=account.pw_uid,
        gid=account.pw_gid,
        groups=tuple(os.getgrouplist(account.pw_name, account.pw_gid)),
        has_terminal=spec.has_terminal,
    )


def create_output_directories(spec: LaunchSpec) -> None:
    """Create the folder of the output files that the engine chose; the others' are created by the job's user."""
    if spec.engines_folder is not None:
        spec.engines_folder.mkdir(parents=True, exist_ok=True)


def install_tini(tini: Path, folder: Path) -> Path:
    """Copy tini to a permanent path: a restore requires a snapshot's programs at the same path, with equal content."""
    content = tini.read_bytes()
    target = folder / f"tini-{hashlib.sha256(content).hexdigest()[:12]}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{target.name}.{os.getpid()}"
        temporary.write_bytes(content)
        temporary.chmod(0o755)
        temporary.replace(target)
    return target


def _user_account(user: str | None) -> pwd.struct_passwd:
    if user is None:
        return pwd.getpwuid(os.geteuid())
    try:
        return pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError as error:
        raise UsageError("user", user, "is not known on this machine", remedy="name a user of its passwd") from error


def _account_environment(account: pwd.struct_passwd) -> dict[str, str]:
    """Return the variables that a login sets: from passwd, and this machine's language."""
    return _machine_language() | {
        "PATH": DEFAULT_PATH,
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell or "/bin/sh",
    }


def _terminal_environment(spec: LaunchSpec) -> dict[str, str]:
    return {"TERM": DEFAULT_TERM} if spec.has_terminal else {}


def _machine_language() -> dict[str, str]:
    """Return LANG as this machine sets it (locale.conf(5)); nothing without one."""
    for file in LOCALE_FILES:
        try:
            text = file.read_text(errors="replace")
        except OSError:  # none there, or none for this user: a login ignores it, too
            continue
        found = re.findall(r"""^LANG=(["']?)([\w.@-]+)\1\s*$""", text, re.MULTILINE)
        return {"LANG": found[-1][1]} if found else {}
    return {}


def _require_command(argv: tuple[str, ...], environment: dict[str, str], directory: Path) -> None:
    if not argv:
        raise UsageError("argv", [], "is empty", remedy="give the command to run")
    command = argv[0] if "/" not in argv[0] else str(directory / argv[0])
    # the kernel resolves what is relative in PATH in the job's directory, not in this process's
    places = os.pathsep.join(str(directory / place) for place in environment["PATH"].split(os.pathsep))
    if shutil.which(command, path=places) is None:
        where = f"in {environment['PATH']}" if command == argv[0] else "there, or not executable"
        raise UsageError("argv", argv[0], f"is no program {where}", remedy="check its name, or give its full path")
