"""Looking for processes while they end: one that is gone, or a zombie, is passed over by every search of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from tests import processes
from tests.integration.local.engine.conftest import Engine
from tests.integration.local.engine.test_killed_parts import _kill_any


@pytest.fixture
def zombie() -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process that has ended, and that nobody has waited for."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process
    process.wait()


def test_random_kills_pass_over_a_zombie(zombie: subprocess.Popen[bytes]) -> None:
    _kill_any(cast("Engine", SimpleNamespace(pid=os.getpid())), "criu")


def test_a_zombie_has_no_words_and_does_not_live(zombie: subprocess.Popen[bytes]) -> None:
    found = {process.pid: process for process in processes.below(os.getpid())}[zombie.pid]
    assert processes.words_of(found) == []
    assert not processes.is_alive(zombie.pid)


def test_what_is_gone_has_no_words_no_children_and_cannot_be_killed(zombie: subprocess.Popen[bytes]) -> None:
    found = psutil.Process(zombie.pid)
    zombie.wait()
    assert processes.words_of(found) == []
    assert processes.below(found.pid) == []
    assert not processes.kill(found)
    assert not processes.is_alive(found.pid)


def test_processes_are_found_by_a_folder_that_they_name_or_use(tmp_path: Path) -> None:
    sleeps = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    (tmp_path / "file").touch()
    with (
        (tmp_path / "file").open() as file,
        subprocess.Popen([*sleeps, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as names,
        subprocess.Popen(sleeps, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file) as uses,
    ):
        for process in (names, uses):
            assert process.stdout is not None
            process.stdout.readline()
        assert [process.pid for process in processes.naming(tmp_path)] == [names.pid]
        assert {process.pid for process in processes.using(tmp_path)} == {names.pid, uses.pid}
        for process in (names, uses):
            process.communicate()
    assert processes.using(tmp_path) == []
