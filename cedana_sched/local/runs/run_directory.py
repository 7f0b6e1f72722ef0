"""The interface between a run's supervisor and the engine: files in the run's directory, each replaced atomically.

    spec.json    what to run: written by the engine before the supervisor starts
    state.json   the run's phase: written by the supervisor at each change
    exit.json    how the run ended, written last: by the supervisor, or by the engine if the supervisor was killed
    lock         held by the supervisor while it lives, by the engine while it finalizes the run
    terminal.sock  of a run with a terminal: its keeper's, for clients that attach
    shim.log     the supervisor's log; restore.log and criu.stderr: CRIU's; root/: where mounts are assembled

A supervisor that finds `exit.json` does nothing: a run starts at most once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from cedana_sched.local.runs.launch_spec import RestoreTask
from cedana_sched.local.runs.process_identity import ProcessId
from cedana_sched.model.errors import CedanaSchedError, FilesChangedError, RestoreError, RetryableError
from cedana_sched.snapshot.cgroups import Limits
from cedana_sched.snapshot.launch import Job

PREPARING = "preparing"
RUNNING = "running"
FAILED = "failed"
EXITED = "exited"

_Record = TypeVar("_Record", bound=msgspec.Struct)


class Failure(msgspec.Struct, frozen=True):
    """Why a run could not start, or was lost; the fields are those of `CedanaSchedError`."""

    message: str
    remedy: str = ""
    evidence: tuple[str, ...] = ()
    retryable: bool = False
    """Whether a retry of the same restore may succeed."""
    files_changed: bool = False
    """Whether the policy for files that have changed since the snapshot decides what follows."""

    @classmethod
    def from_error(cls, error: CedanaSchedError) -> Self:
        is_retryable, has_changed = isinstance(error, RetryableError), isinstance(error, FilesChangedError)
        return cls(error.message, error.remedy, error.evidence, is_retryable, has_changed)

    def restore_error(self) -> RestoreError:
        """Return the error of a restore that failed so."""
        kind = FilesChangedError if self.files_changed else RestoreError
        return kind(self.message, remedy=self.remedy, evidence=self.evidence)


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of a run, for its supervisor."""

    run: str
    task: Job | RestoreTask | None
    """The launch or restore; None for a run that failed before its start."""
    limits: Limits
    cgroup: dict[str, str]
    """Directories of the run's control groups, by controller (see `cgroups.Cgroup`)."""
    mounts: tuple[str, ...] = ()
    """The host's mounts in the job's mount namespace besides `/`."""
    cold_because: str | None = None
    """Why the run was started cold, when a snapshot was expected."""
    terminal_output: Path | None = None
    """The file for the output of the run's terminal; None if the run has no terminal."""
    engines_folder: Path | None = None
    """See `LaunchSpec.engines_folder`."""

    @property
    def is_restore(self) -> bool:
        return isinstance(self.task, RestoreTask)


class RunState(msgspec.Struct, frozen=True):
    """The phase of a run. `notes` describe settings that could not be applied on this machine."""

    phase: str
    shim: ProcessId
    init: ProcessId | None = None
    started_at: float | None = None
    notes: tuple[str, ...] = ()


class ExitRecord(msgspec.Struct, frozen=True):
    """The end of a run. Without exit code and signal the run never started, or was lost: `failure` has the reason.

    PID 1 of a job reports a signal that killed the job as 128 plus the signal's number, as a shell does; `signal` is
    then the signal's name, also if a job chose such an exit code itself.
    """

    at: float
    exit_code: int | None = None
    signal: str | None = None
    oom_killed: bool = False
    cpu_seconds: float = 0.0
    max_memory_bytes: int = 0
    lost: bool = False
    failure: Failure | None = None


class RunDirectory:
    """One run's directory. Reads return None for a file that is not written yet, or that a power failure emptied."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "shim.log"
        self.root = path / "root"

    @property
    def uid(self) -> str:
        return self.path.name

    def create(self, spec: RunSpec) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self._write("spec.json", spec)

    def read_spec(self) -> RunSpec | None:
        return self._read("spec.json", RunSpec)

    def read_state(self) -> RunState | None:
        return self._read("state.json", RunState)

    def read_exit(self) -> ExitRecord | None:
        return self._read("exit.json", ExitRecord)

    def write_state(self, state: RunState) -> None:
        self._write("state.json", state)

    def write_exit(self, record: ExitRecord) -> None:
        self._write("exit.json", record, durable=True)

    def try_to_lock(self) -> int | None:
        """Take the lock until the returned descriptor is closed; None if another process holds the lock."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def discard_unbegun(self) -> bool:
        """Remove a run that no supervisor has started, and return True; a late supervisor then does nothing."""
        lock = self.try_to_lock()
        if lock is None:
            return False
        try:
            if self.read_spec() is not None and (self.read_state() is not None or self.read_exit() is not None):
                return False
            shutil.rmtree(self.path)
        finally:
            os.close(lock)
        return True

    def _read(self, name: str, kind: type[_Record]) -> _Record | None:
        try:
            content = (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(content, type=kind, dec_hook=_decode) if content else None

    def _write(self, name: str, record: msgspec.Struct, *, durable: bool = False) -> None:
        """Replace the file atomically. `durable` is for records that must survive a power failure; processes do not."""
        temporary = self.path / f".{name}"
        # for the owner alone: a job's environment may hold secrets
        with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(msgspec.json.format(msgspec.json.encode(record, enc_hook=str)))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(self.path / name)


def _decode(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(f"a record holds no {kind}")
