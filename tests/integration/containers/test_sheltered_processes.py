"""A process is moved to where another one is, as a rule the node's first, in every hierarchy of control groups."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.cluster.node.shelter import shelter

pytestmark = pytest.mark.criu

HIERARCHIES = Path("/sys/fs/cgroup")


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a control group of its own in each hierarchy that there is."""
    roots = [path.parent for path in (HIERARCHIES / "cgroup.procs", *HIERARCHIES.glob("*/cgroup.procs"))]
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        groups: list[Path] = []
        for root in (root for root in roots if (root / "cgroup.procs").exists() and root.name != "cpuset"):
            groups.append(root / f"cedana-sched-test-{process.pid}")
            groups[-1].mkdir()
            (groups[-1] / "cgroup.procs").write_text(str(process.pid))
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for group in groups:
                group.rmdir()


async def test_it_has_nothing_of_its_container_any_more(sleeping: subprocess.Popen[bytes]) -> None:
    assert f"cedana-sched-test-{sleeping.pid}" in _groups(sleeping.pid)
    assert await shelter(sleeping.pid, first=os.getpid())
    assert _groups(sleeping.pid) == _groups(os.getpid())


async def test_a_process_that_has_ended_is_not_sheltered() -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    assert not await shelter(process.pid, first=os.getpid())


def _groups(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()
