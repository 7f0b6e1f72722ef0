"""Where captures have their memory limited; the kernel's files are played by ordinary ones."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import pytest

from cedana_sched.cluster.node import capture_detacher as module
from cedana_sched.cluster.node.capture_cgroups import PARENT, CaptureCgroups, memory_of_this_machine
from cedana_sched.cluster.node.capture_detacher import HostCgroupDetacher, prefer_as_oom_victim
from cedana_sched.snapshot.cgroups import CgroupError, Limits
from cedana_sched.snapshot.dump import spare_from_oom_killer

V1_FREEZER = "37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory"
V2_BESIDE = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
V2 = "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The hierarchies of a host with v2, as a kubelet leaves it, and a parent that has been made."""
    root = tmp_path / "sys/fs/cgroup"
    for folder, enabled in ((root, "cpu memory"), (root / PARENT, "")):
        folder.mkdir(parents=True)
        (folder / "cgroup.controllers").write_text("cpu io memory pids")
        (folder / "cgroup.subtree_control").write_text(enabled)
        (folder / "cgroup.procs").write_text("")
    return root


@pytest.fixture
def moved(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What is run in the namespaces of the host."""
    calls: list[tuple[str, ...]] = []

    async def run(first: int, script: str, *words: str) -> str | None:
        calls.append(words)
        return None

    monkeypatch.setattr(module, "_run_on_host", run)
    monkeypatch.setattr(secrets, "token_hex", lambda _: "a1")
    group = root / PARENT / f"{os.getpid()}-a1"
    group.mkdir()
    for name in ("memory.max", "memory.swap.max", "memory.events"):
        (group / name).write_text("")
    return calls


def test_it_is_memorys_hierarchy_beside_a_v2_without_controllers(tmp_path: Path) -> None:
    groups = CaptureCgroups.find_on_host(tmp_path, [V1_FREEZER, V1_MEMORY, V2_BESIDE])
    (place,) = groups.new_capture_cgroup(7).unique_directories
    assert place.parent == tmp_path / "sys/fs/cgroup/memory" / PARENT
    assert place.name.startswith("7-")
    assert groups.new_capture_cgroup(7).unique_directories != (place,), (
        "a PID comes again, and what was counted for it must not"
    )


def test_in_v2_it_gets_the_memory_controller_and_no_other(root: Path, tmp_path: Path) -> None:
    group = CaptureCgroups.find_on_host(tmp_path, [V2]).new_capture_cgroup(7)
    group.create()
    assert (root / PARENT / "cgroup.subtree_control").read_text() == "+memory"
    for name in ("memory.max", "memory.swap.max"):
        (group.unique_directories[0] / name).write_text("")
    assert group.apply_limits(Limits(memory_bytes=MIB)) == []
    assert (group.unique_directories[0] / "memory.max").read_text() == str(MIB)
    assert (group.unique_directories[0] / "memory.swap.max").read_text() == "0"


@pytest.mark.parametrize("mountinfo", [[V1_FREEZER, V2_BESIDE], [], [V2]])
def test_a_node_without_a_memory_controller_says_so(tmp_path: Path, mountinfo: list[str]) -> None:
    with pytest.raises(CgroupError, match="control group"):
        CaptureCgroups.find_on_host(tmp_path, mountinfo)


def test_a_root_that_does_not_hand_it_on_is_left_as_it_is(root: Path, tmp_path: Path) -> None:
    (root / "cgroup.subtree_control").write_text("cpu")
    with pytest.raises(CgroupError, match="does not hand on"):
        CaptureCgroups.find_on_host(tmp_path, [V2])
    assert (root / "cgroup.subtree_control").read_text() == "cpu"


def test_what_earlier_agents_left_is_removed_but_what_is_young_or_in_use(root: Path, tmp_path: Path) -> None:
    hour_ago = time.time() - 3600
    for name in ("old", "young", "used"):
        (root / PARENT / name).mkdir()
    (root / PARENT / "used" / "a process").touch()
    for name in ("old", "used"):
        os.utime(root / PARENT / name, (hour_ago, hour_ago))
    CaptureCgroups.find_on_host(tmp_path, [V2]).remove_abandoned_groups()
    assert {path.name for path in (root / PARENT).iterdir() if path.is_dir()} == {"young", "used"}


def test_nothing_stays_on_a_node_without_captures(tmp_path: Path) -> None:
    memory = tmp_path / "sys/fs/cgroup/memory"
    (memory / PARENT / "old").mkdir(parents=True)
    os.utime(memory / PARENT / "old", (1, 1))
    groups = CaptureCgroups.find_on_host(tmp_path, [V1_FREEZER, V1_MEMORY])
    groups.remove_abandoned_groups()
    assert list(memory.iterdir()) == []
    groups.remove_abandoned_groups()


async def test_a_capture_is_moved_limited_by_its_workload_and_removed(
    root: Path, tmp_path: Path, moved: list[tuple[str, ...]]
) -> None:
    node, pid = _node(tmp_path), os.getpid()
    assert await node.detach(pid)
    place = root / PARENT / f"{pid}-a1"
    assert moved == [(str(pid), "1"), (str(pid), f"/sys/fs/cgroup/{PARENT}/{pid}-a1")]
    await node.limit_memory(pid, 512 * MIB)
    assert int((place / "memory.max").read_text()) == (64 + 2) * MIB
    await node.limit_memory(pid, 1 << 60)
    assert int((place / "memory.max").read_text()) == 64 * MIB + memory_of_this_machine() // 256
    (place / "memory.events").write_text("oom 1\noom_kill 0\n")
    _empty(place)
    assert await node.clean_up_after(pid) is None
    assert not place.exists()
    assert await node.clean_up_after(pid) is None


async def test_a_capture_that_was_killed_at_its_limit_says_what_to_raise(
    root: Path, tmp_path: Path, moved: list[tuple[str, ...]]
) -> None:
    node, pid = _node(tmp_path), os.getpid()
    assert await node.detach(pid)
    await node.limit_memory(pid, 0)
    (root / PARENT / f"{pid}-a1" / "memory.events").write_text("oom 1\noom_kill 1\n")
    words = await node.clean_up_after(pid)
    assert words == "the dump ran out of memory at its limit of 64 MiB: raise agent.dumps.memoryBytesEach"


async def test_a_group_that_is_tidied_away_is_made_again(
    root: Path, tmp_path: Path, moved: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, tries = os.getpid(), []
    place = root / PARENT / f"{pid}-a1"

    async def run(first: int, script: str, *words: str) -> str | None:
        if not words[1].startswith("/"):
            return None
        tries.append(words)
        if len(tries) > 1:
            return None
        _empty(place)
        place.rmdir()
        return "Directory nonexistent"

    monkeypatch.setattr(module, "_run_on_host", run)
    node = _node(tmp_path)
    assert await node.detach(pid)
    assert len(tries) == 2
    assert place.exists()


async def test_where_there_is_no_memory_controller_captures_outlive_the_agent_without_a_limit(
    tmp_path: Path, moved: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> CaptureCgroups:
        raise CgroupError("no memory controller")

    monkeypatch.setattr(CaptureCgroups, "find_on_host", none)
    node, pid = HostCgroupDetacher(64 * MIB, tmp_path, os.getpid()), os.getpid()
    await node.prepare_groups()
    assert node.why_unlimited == "no memory controller"
    assert await node.detach(pid)
    await node.limit_memory(pid, MIB)
    assert await node.clean_up_after(pid) is None
    assert len(moved) == 1


@pytest.mark.parametrize(("inherited", "own"), [("-997", "0"), ("0", "0"), ("500", "500")])
def test_a_capture_goes_before_its_criu_which_is_the_last_choice_but_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherited: str, own: str
) -> None:
    """A group in which nothing may be killed (-1000) has its processes wait for memory for ever."""
    written: dict[str, str] = {}
    score = tmp_path / "oom_score_adj"
    score.write_text(inherited + "\n")
    prefer_as_oom_victim(score)
    assert score.read_text().strip() == own
    prefer_as_oom_victim(tmp_path / "ended")
    monkeypatch.setattr(Path, "write_text", lambda path, text: written.update({str(path): text}))
    spare_from_oom_killer(7)
    assert written.keys() == {"/proc/7/oom_score_adj"}
    assert -1000 < int(written["/proc/7/oom_score_adj"]) < int(own)


def _node(host_root: Path) -> HostCgroupDetacher:
    node = HostCgroupDetacher(64 * MIB, host_root)
    node._groups = CaptureCgroups.find_on_host(host_root, [V2])
    return node


def _empty(group: Path) -> None:
    """The kernel removes a group with its files."""
    for path in group.iterdir():
        path.unlink()
