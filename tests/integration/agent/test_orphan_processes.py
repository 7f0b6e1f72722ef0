"""The search for an orphaned CRIU reads nothing that a tenant's process can keep locked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cedana_sched.agent import orphan_processes
from cedana_sched.agent.workload_runtime import RunningContainer, RunningWorkload

if TYPE_CHECKING:
    import psutil
    import pytest

    from cedana_sched.snapshot.criu_toolchain import Toolchain


def test_command_lines_of_containers_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def command_line(process: psutil.Process) -> list[str]:
        read.append(process.pid)
        return []

    monkeypatch.setattr(orphan_processes, "_command_line", command_line)
    script = "echo $PPID; exec sleep 600"
    command = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as unshare:
        try:
            assert unshare.stdout is not None
            assert unshare.stdout.readline() == b"0\n", "its parent is in another namespace"
            children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
            (container,) = map(int, children.read_text().split())
            workload = RunningWorkload((RunningContainer(os.getpid(), tmp_path / "gone", "main"),))
            assert orphan_processes.await_orphans(cast("Toolchain", None), tmp_path, workload)
        finally:
            unshare.kill()
    assert {os.getpid(), unshare.pid} <= set(read)
    assert container not in read
