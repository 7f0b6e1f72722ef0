"""Who holds a lock is asked of the file itself, and of nothing that acts when it is opened."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from cedana_sched.runtime_handler.posix_lock_restore import PosixLock, _lock_holder_of


@pytest.mark.timeout(120)
def test_a_pipe_keeps_nobody_who_asks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    descriptor = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        lock = PosixLock(pid=1, descriptor=descriptor, kind=fcntl.F_RDLCK, start=0, length=0)
        assert _lock_holder_of(os.getpid(), lock) == 0
    finally:
        os.close(descriptor)
