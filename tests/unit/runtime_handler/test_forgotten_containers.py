"""A container that runs on forgotten ends after its pod's sandbox, so that nothing begins there instead."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.runtime_handler.containerd_lost_containers import end_unrecorded_container
from cedana_sched.runtime_handler.shim_command_line import CreateCall


@pytest.fixture
def processes() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    running = {name: subprocess.Popen(["sleep", "600"]) for name in ("main", "pause")}
    yield running
    for process in running.values():
        process.kill()
        process.wait()


def _call(root: Path) -> CreateCall:
    return CreateCall(["--root", str(root), "create", "--bundle", "bundle", "new"])


def _write_state(folder: Path, pid: int, older: int = 0) -> None:
    start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    folder.mkdir()
    content = {"init_process_pid": pid, "init_process_start": start - older}
    (folder / "state.json").write_text(json.dumps(content))


def test_sandbox_ends_whatever_keeps_the_container_from_being_removed(
    tmp_path: Path, processes: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, process in processes.items():
        _write_state(tmp_path / name, process.pid)

    def short() -> int:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", short)
    with pytest.raises(BlockingIOError):
        end_unrecorded_container("main", "pause", "/bin/true", _call(tmp_path))
    assert [process.wait(30) for process in processes.values()] == [-9, -9]


@pytest.mark.parametrize("state", ["none", "of another process", "ended", "unreadable"])
def test_nothing_is_done_where_it_has_ended(
    tmp_path: Path, processes: dict[str, subprocess.Popen[bytes]], state: str
) -> None:
    _write_state(tmp_path / "pause", processes["pause"].pid)
    if state != "none":
        _write_state(tmp_path / "main", processes["main"].pid, older=int(state == "of another process"))
    if state == "ended":
        processes["main"].kill()
        os.waitid(os.P_PID, processes["main"].pid, os.WEXITED | os.WNOWAIT)
    if state == "unreadable":
        (tmp_path / "main/state.json").write_text("{")
    assert not end_unrecorded_container("main", "pause", "/bin/true", _call(tmp_path))
    assert processes["pause"].poll() is None
