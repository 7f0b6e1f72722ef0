"""A process is moved to where another one is, as a rule the node's first, and of memory into a group with a limit."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.agent.capture_messages import CaptureCommitted, CaptureFailed
from cedana_sched.cluster.node.capture_cgroups import PARENT
from cedana_sched.cluster.node.capture_detacher import VALUE, HostCgroupDetacher, move_to_host_cgroups
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.cgroups import Cgroup
from cedana_sched.snapshot.dump import spare_from_oom_killer
from tests.integration.cluster.node.conftest import Laboratory
from tests.integration.cluster.node.test_pod_generations import COUNTER

pytestmark = pytest.mark.criu

HIERARCHIES = Path("/sys/fs/cgroup")
ROOT = Path("/")
MIB = 1 << 20
GREEDY = "import sys; sys.stdin.read(1); taken = [bytearray(b'x' * (1 << 20)) for _ in range(256)]; print('has it')"
"""Takes 256 MiB when it may."""


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
    assert await move_to_host_cgroups(sleeping.pid, first=os.getpid())
    assert _groups(sleeping.pid) == _groups(os.getpid())


async def test_a_process_that_has_ended_is_not_sheltered() -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    assert not await move_to_host_cgroups(process.pid, first=os.getpid())


async def test_it_has_a_group_of_its_own_of_memory_alone(sleeping: subprocess.Popen[bytes]) -> None:
    node = await _node(64 * MIB)
    assert await node.detach(sleeping.pid)
    others = [line for line in _groups(sleeping.pid).splitlines() if PARENT not in line]
    assert set(others) < set(_groups(os.getpid()).splitlines())
    assert len(others) == len(_groups(os.getpid()).splitlines()) - 1
    await node.limit_memory(sleeping.pid, 256 * MIB)
    group = _group_of(sleeping.pid)
    assert _limit_of(group) == 65 * MIB  # and 16 bytes for each page
    sleeping.kill()
    sleeping.wait()
    assert await node.clean_up_after(sleeping.pid) is None
    assert not group.unique_directories[0].exists()


@pytest.mark.parametrize("is_criu", [True, False])
async def test_who_takes_more_ends_and_it_is_said_how_to_let_it(is_criu: bool) -> None:
    """Also CRIU: a group of processes of which none may be killed would wait for ever."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GREEDY, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        node = await _node(48 * MIB)
        assert await node.detach(process.pid)
        await node.limit_memory(process.pid, 0)
        if is_criu:
            spare_from_oom_killer(process.pid)  # where we may: it needs CAP_SYS_RESOURCE
        said, _ = await asyncio.wait_for(process.communicate(b"\n"), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (said, process.returncode) == (b"", -signal.SIGKILL)
    words = await node.clean_up_after(process.pid)
    assert words is not None
    assert "out of memory at its limit of 48 MiB" in words
    assert VALUE in words


def test_a_pod_whose_capture_ran_out_of_memory_runs_on_and_is_saved_with_more(lab: Laboratory) -> None:
    pod = lab.node.pod("pod-1")
    counter = pod.run("main", COUNTER)
    counter.await_lines(1)
    lab.shelter = asyncio.run(_opened(_Tight(0, ROOT, os.getpid())))
    running = lab.freeze(pod)
    report = asyncio.run(lab.capture(running))
    assert isinstance(report, CaptureFailed), report
    words = r"the dump ran out of memory at its limit of \d+ MiB: raise agent\.dumps\.memoryBytesEach;"
    assert re.match(words, report.why), report.why
    assert report.retryable
    freezer.thaw_together(running.freezer_cgroups)  # as the agent does when the coordinator has it abort
    counter.await_progress()
    lab.shelter = asyncio.run(_node(256 * MIB))
    assert isinstance(asyncio.run(lab.capture(lab.freeze(pod))), CaptureCommitted)


class _Tight(HostCgroupDetacher):
    """Gives a capture 8 MiB more than it has, half of what a dump takes; imports may be still to come."""

    async def limit_memory(self, pid: int, workload_bytes: int) -> None:
        group, _ = self._of[pid]
        self._limit_bytes = _usage_of(group) + 8 * MIB
        await super().limit_memory(pid, workload_bytes)


async def _node(limit_bytes: int) -> HostCgroupDetacher:
    return await _opened(HostCgroupDetacher(limit_bytes, ROOT, os.getpid()))


async def _opened(node: HostCgroupDetacher) -> HostCgroupDetacher:
    await node.prepare_groups()
    if node.why_unlimited is not None:
        pytest.skip(node.why_unlimited)
    return node


def _groups(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def _group_of(pid: int) -> Cgroup:
    found = next(line.split(":", 2) for line in _groups(pid).splitlines() if PARENT in line)
    directory = f"{HIERARCHIES / found[1]}{found[2]}"
    return Cgroup({found[1] or "unified": directory})


def _usage_of(group: Cgroup) -> int:
    name = "memory.current" if group.version == 2 else "memory.usage_in_bytes"
    return int((group.unique_directories[0] / name).read_text())


def _limit_of(group: Cgroup) -> int:
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    return int((group.unique_directories[0] / name).read_text())
