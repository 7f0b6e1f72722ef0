"""What a run's supervisor and the engine say to each other: files in the run's directory, each written in one step.

    spec.json    what to run, by the engine, before the supervisor starts
    state.json   how far it is, by the supervisor, at each change
    exit.json    how it ended, last: by the supervisor, or by the engine when the supervisor was killed
    lock         held by the supervisor while it lives, by the engine while it declares the run lost
    shim.log     the supervisor's own words; restore.log, root/: CRIU's

A supervisor that finds `exit.json` does nothing: a run begins once. Standard library only and light.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple, Self

from cedana_sched.local.cgroups import Limits
from cedana_sched.local.processes import ProcessId

PREPARING = "preparing"
RUNNING = "running"
FAILED = "failed"
EXITED = "exited"


class Failure(NamedTuple):
    """Why a run could not begin, or was lost; the fields are those of our errors."""

    message: str
    remedy: str = ""
    evidence: tuple[str, ...] = ()


class RunSpec(NamedTuple):
    """What the supervisor is to do. `task` is passed on, unread, to the program that starts or restores the job."""

    run: str
    mode: str
    """`start` or `restore`."""
    task: dict[str, Any]
    limits: Limits
    cgroup: dict[str, str]
    """Directories of the run's groups, by controller (see `cgroups.RunCgroup`)."""
    supervisors: dict[str, str]
    mounts: tuple[str, ...] = ()
    """The host's mounts that the job sees besides `/`."""
    cold_because: str | None = None
    """Why the run was started cold, when a snapshot was expected."""

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        return cls(**(found | {"limits": Limits(*found["limits"]), "mounts": tuple(found["mounts"])}))


class RunState(NamedTuple):
    """How far a run is. `notes` say in words what this machine could not do for it."""

    phase: str
    shim: ProcessId
    init: ProcessId | None = None
    started_at: float | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        init = found["init"]
        known = {
            "shim": ProcessId(*found["shim"]),
            "init": ProcessId(*init) if init else None,
            "notes": tuple(found["notes"]),
        }
        return cls(**(found | known))


class ExitRecord(NamedTuple):
    """How a run ended. Without exit code and signal it never ran, or was lost: `failure` says why.

    PID 1 of a job reports a signal that killed the job as 128 plus its number, as a shell does; `signal` is its name
    then, also when a job chose such an exit code itself.
    """

    at: float
    exit_code: int | None = None
    signal: str | None = None
    oom_killed: bool = False
    cpu_seconds: float = 0.0
    max_memory_bytes: int = 0
    lost: bool = False
    failure: Failure | None = None

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        failure = found["failure"]
        if failure is not None:
            failure = Failure(failure[0], failure[1], tuple(failure[2]))
        return cls(**(found | {"failure": failure}))


class RunDirectory:
    """One run's directory. Reading gives None for what is not written yet."""

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

    def spec(self) -> RunSpec | None:
        found = self._read("spec.json")
        return RunSpec.from_json(found) if found else None

    def state(self) -> RunState | None:
        found = self._read("state.json")
        return RunState.from_json(found) if found else None

    def exit(self) -> ExitRecord | None:
        found = self._read("exit.json")
        return ExitRecord.from_json(found) if found else None

    def write_state(self, state: RunState) -> None:
        self._write("state.json", state)

    def write_exit(self, record: ExitRecord) -> None:
        self._write("exit.json", record)

    def lock(self) -> int | None:
        """Take the lock until the descriptor is closed; None when somebody else has it."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def discard_unbegun(self) -> bool:
        """Remove a run that no supervisor has begun; a late one finds nothing to do. False when it has begun."""
        lock = self.lock()
        if lock is None:
            return False
        try:
            if self.state() is not None or self.exit() is not None:
                return False
            shutil.rmtree(self.path)
        finally:
            os.close(lock)
        return True

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            text = (self.path / name).read_text()
        except FileNotFoundError:
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    def _write(self, name: str, record: RunSpec | RunState | ExitRecord) -> None:
        temporary = self.path / f".{name}"
        with temporary.open("w") as file:
            json.dump(record._asdict(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / name)
