"""The look before a freeze finds who has /dev/tty open, and no other name of that terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cedana_sched.snapshot.open_terminals import OpenTerminals
from cedana_sched.snapshot.preflight import find_obstacles


def _process(proc: Path, pid: int, terminal: int) -> Path:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a) b c) S 1 {pid} {pid} {terminal} 1 0 0\n")
    return folder


def _terminal(index: int) -> int:
    return os.makedev(136, index)


@pytest.mark.parametrize("name", ["/dev/pts/1", "/dev/pts/1 (deleted)", "/dev/pts/ptmx", "/dev/tty"])
def test_a_terminal_without_a_name_is_found(tmp_path: Path, name: str) -> None:
    terminals = OpenTerminals()
    terminals.add_descriptor(_process(tmp_path, 3, _terminal(300)), "/dev/tty")
    terminals.add_descriptor(_process(tmp_path, 4, _terminal(300)), name)
    assert 3 in terminals.nameless_holders()


@pytest.mark.parametrize(("name", "index"), [("/dev/pts/300", 300), ("/dev/pts/0", 0), ("/dev/console", 0)])
def test_a_terminal_may_be_named_by_another_process_and_later(tmp_path: Path, name: str, index: int) -> None:
    terminals = OpenTerminals()
    terminals.add_descriptor(_process(tmp_path, 3, _terminal(index)), "/dev/tty")
    terminals.add_descriptor(_process(tmp_path, 4, 0), name)
    assert list(terminals.nameless_holders()) == []


def test_a_process_without_a_controlling_terminal_may_have_the_file_from_another(tmp_path: Path) -> None:
    terminals = OpenTerminals()
    terminals.add_descriptor(_process(tmp_path, 3, 0), "/dev/tty")
    assert list(terminals.nameless_holders()) == []


def test_the_look_names_process_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "readlink", lambda _: Path("/dev/tty"))
    monkeypatch.setattr(OpenTerminals, "nameless_holders", lambda terminals: iter(sorted(terminals._current)))
    (found,) = find_obstacles([os.getpid()])
    assert (found.pid, found.reason) == (os.getpid(), "HoldsNamelessTerminal")
    assert "has /dev/tty open" in found.problem
    assert "standard stream" in found.remedy
