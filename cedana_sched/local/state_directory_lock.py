"""Exclusive lock on the engine's state directory; the kernel releases the lock when the engine dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from cedana_sched.model.errors import CedanaSchedError

LOCK_NAME = "engine.lock"


class StateDirectoryError(CedanaSchedError):
    """The state directory cannot be used: another engine owns the directory, or the directory is not writable."""


@contextlib.contextmanager
def lock_state_directory(directory: Path) -> Iterator[None]:
    """Create `directory` (mode 0700) if necessary, and hold its lock inside the block. Never waits.

    Raises:
        StateDirectoryError: another engine holds the lock, or the directory cannot be created or written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateDirectoryError(
            f"state directory {directory} cannot be used: {error.strerror}", remedy="name a writable one: --state-dir"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise StateDirectoryError(
                f"another engine (PID {owner}) runs on state directory {directory}",
                remedy="stop it, or give this one its own --state-dir",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
