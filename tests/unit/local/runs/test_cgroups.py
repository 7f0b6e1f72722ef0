"""The kernel's control group files, played by ordinary files."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from cedana_sched.local.runs.cgroup_site import CgroupSite
from cedana_sched.snapshot import cgroups
from cedana_sched.snapshot.cgroups import Cgroup, CgroupError, Limits, find_roots

V1_HOST = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_HOST = "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_hybrid_machine_counts_as_v1() -> None:
    roots = find_roots(V1_HOST.splitlines())
    assert roots == {
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "memory": Path("/sys/fs/cgroup/memory"),
        "freezer": Path("/sys/fs/cgroup/freezer"),
    }


def test_unified_machine_counts_as_v2() -> None:
    assert find_roots(V2_HOST.splitlines()) == {"unified": Path("/sys/fs/cgroup")}


def test_machine_without_a_freezer_is_refused_with_a_remedy() -> None:
    with pytest.raises(CgroupError) as caught:
        find_roots(V1_HOST.splitlines()[:3])
    assert "cgroup2" in caught.value.remedy


def test_controllers_mounted_together_are_one_directory_and_the_freezer_is_first() -> None:
    group = CgroupSite(find_roots(V1_HOST.splitlines())).run_group("r1")
    assert group.unique_directories == (
        Path("/sys/fs/cgroup/freezer/cedana-sched/r1"),
        Path("/sys/fs/cgroup/cpu,cpuacct/cedana-sched/r1"),
        Path("/sys/fs/cgroup/memory/cedana-sched/r1"),
    )
    assert Cgroup(group.as_json()).unique_directories == group.unique_directories


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    """A v2 root with its controllers; the kernel's own files appear in each new group."""
    fill(
        tmp_path, {"cgroup.controllers": "cpuset cpu io memory pids", "cgroup.subtree_control": "", "cgroup.procs": ""}
    )
    return tmp_path


@pytest.fixture
def kernel(unified: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record what is written, and make the files of groups as the kernel does."""
    written: list[tuple[str, str]] = []
    real_mkdir = Path.mkdir

    def write(path: Path, value: str) -> None:
        written.append((str(path.relative_to(unified)), value))
        path.write_text(value.replace("+", ""))
        if path.name == "cgroup.subtree_control":
            for child in path.parent.iterdir():
                if child.is_dir():
                    show_controllers(child)

    def mkdir(path: Path, **kwargs: bool) -> None:
        if not path.exists():
            real_mkdir(path, **kwargs)
            fill(path, {"cgroup.subtree_control": "", "cgroup.procs": ""})
            show_controllers(path)

    monkeypatch.setattr(cgroups, "_write", write)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    return written


def show_controllers(group: Path) -> None:
    enabled = (group.parent / "cgroup.subtree_control").read_text()
    files = ("cpu.max", "cpu.weight", "memory.max", "memory.swap.max", "pids.max")
    fill(group, {name: "" for name in files if name.split(".")[0] in enabled.split()})
    fill(group, {"cgroup.controllers": enabled})


def test_controllers_are_delegated_down_to_the_run(unified: Path, kernel: list[tuple[str, str]]) -> None:
    CgroupSite({"unified": unified}).run_group("r1").create()
    assert kernel == [
        ("cgroup.subtree_control", "+cpu +memory +pids"),
        ("cedana-sched/cgroup.subtree_control", "+cpu +memory +pids"),
    ]


def test_what_is_delegated_already_is_left_alone(unified: Path, kernel: list[tuple[str, str]]) -> None:
    fill(unified, {"cgroup.subtree_control": "cpu memory pids"})
    CgroupSite({"unified": unified}).run_group("r1").create()
    assert kernel == [("cedana-sched/cgroup.subtree_control", "+cpu +memory +pids")]


def test_processes_in_the_root_of_a_container_move_aside(
    unified: Path, kernel: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(unified, {"cgroup.procs": "1\n42\n"})
    recorded = cgroups._write

    def write(path: Path, value: str) -> None:
        moved = {value for name, value in kernel if name == "init/cgroup.procs"}
        if path == unified / "cgroup.subtree_control" and moved != {"1", "42"}:
            raise OSError(16, "Device or resource busy")
        recorded(path, value)

    monkeypatch.setattr(cgroups, "_write", write)
    CgroupSite({"unified": unified}).run_group("r1").create()
    assert [value for name, value in kernel if name == "init/cgroup.procs"] == ["1", "42"]
    assert ("cgroup.subtree_control", "+cpu +memory +pids") in kernel


@pytest.mark.usefixtures("kernel")
def test_limits_are_written_in_the_words_of_v2(unified: Path) -> None:
    group = CgroupSite({"unified": unified}).run_group("r1")
    group.create()
    assert group.apply_limits(Limits(cpus=1.5, memory_bytes=1 << 30, processes=64)) == []
    assert {
        path.name: path.read_text() for path in group.freezer_directory.iterdir() if not path.name.startswith("cgroup.")
    } == {
        "cpu.max": "150000 100000",
        "cpu.weight": "150",
        "memory.max": "1073741824",
        "memory.swap.max": "0",
        "pids.max": "64",
    }


@pytest.mark.usefixtures("kernel")
def test_missing_controller_is_said_and_the_rest_is_applied(unified: Path) -> None:
    fill(unified, {"cgroup.controllers": "memory pids"})
    group = CgroupSite({"unified": unified}).run_group("r1")
    group.create()
    problems = group.apply_limits(Limits(cpus=1, memory_bytes=1 << 20))
    assert [problem.split(":")[0] for problem in problems] == ["no CPU weight", "no CPU limit"]
    assert (group.freezer_directory / "memory.max").read_text() == "1048576"


def test_limits_are_written_in_the_words_of_v1(tmp_path: Path) -> None:
    group = v1_group(tmp_path)
    names = ("cpu/cpu.shares", "cpu/cpu.cfs_quota_us", "memory/memory.limit_in_bytes", "pids/pids.max")
    fill(tmp_path, dict.fromkeys(names, ""))
    assert group.apply_limits(Limits(cpus=0.001, memory_bytes=5000, processes=3)) == []
    assert [(tmp_path / name).read_text() for name in names] == ["2", "1000", "5000", "3"]


def test_limit_that_the_kernel_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "memory" / "memory.limit_in_bytes").mkdir(parents=True)  # writing it fails, as without a capability
    assert v1_group(tmp_path).apply_limits(Limits(memory_bytes=1)) == [
        "no memory limit: memory.limit_in_bytes cannot be set to 1: Is a directory"
    ]


def test_usage_is_read_from_v1(tmp_path: Path) -> None:
    fill(tmp_path, {"cpuacct/cpuacct.usage": "2500000000", "memory/memory.usage_in_bytes": "10"})
    fill(tmp_path, {"memory/memory.max_usage_in_bytes": "20", "memory/memory.oom_control": "under_oom 0\noom_kill 2\n"})
    assert v1_group(tmp_path).resource_usage() == (2.5, 10, 20)
    assert v1_group(tmp_path).oom_kills() == 2


def test_usage_is_read_from_v2(tmp_path: Path) -> None:
    fill(tmp_path, {"cpu.stat": "usage_usec 1500000\nuser_usec 1\n", "memory.current": "10", "memory.peak": "20"})
    fill(tmp_path, {"memory.events": "oom 3\noom_kill 1\n"})
    group = Cgroup({"unified": str(tmp_path)})
    assert group.resource_usage() == (1.5, 10, 20)
    assert group.oom_kills() == 1


def test_groups_that_are_gone_have_no_usage(tmp_path: Path) -> None:
    group = Cgroup({"unified": str(tmp_path / "gone")})
    assert group.resource_usage() == (0, 0, 0)
    group.kill()
    group.remove()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENODEV])  # before it is open, and after
def test_groups_that_are_removed_while_they_are_read_have_no_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fill(tmp_path, {"cpu.stat": "usage_usec 1500000\n", "memory.current": "10", "memory.peak": "20"})
    fill(tmp_path, {"memory.events": "oom_kill 1\n", "cpuacct/cpuacct.usage": "2500000000"})

    def removed(path: Path) -> str:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "read_text", removed)
    for group in (Cgroup({"unified": str(tmp_path)}), v1_group(tmp_path)):
        assert group.resource_usage() == (0, 0, 0)
        assert group.oom_kills() == 0


def test_abandoned_groups_are_removed_and_young_ones_kept(tmp_path: Path) -> None:
    parent = tmp_path / "cedana-sched"
    for name, age in (("old", 3600), ("young", 0)):
        (parent / name).mkdir(parents=True)
        os.utime(parent / name, (time.time() - age, time.time() - age))
    CgroupSite({"unified": tmp_path}).remove_unused_groups()
    assert [path.name for path in parent.iterdir()] == ["young"]


def test_shared_groups_go_with_the_last_run(tmp_path: Path) -> None:
    (tmp_path / "cedana-sched" / "supervisors").mkdir(parents=True)
    CgroupSite({"unified": tmp_path}).remove_unused_groups()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tidied", [1, 3])
def test_a_process_joins_a_group_that_another_engine_tidies_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tidied: int
) -> None:
    site = CgroupSite({"freezer": tmp_path / "freezer", "cpu": tmp_path / "cpu"})
    for root in site.roots.values():
        root.mkdir()
    joins: list[int] = []
    join = Cgroup.add_process

    def join_late(group: Cgroup, pid: int) -> None:
        joins.append(pid)
        if len(joins) <= tidied:
            site.remove_unused_groups()
        join(group, pid)

    monkeypatch.setattr(Cgroup, "add_process", join_late)
    site.supervisors_group().create_and_join(42)
    assert [(path / "cgroup.procs").read_text() for path in site.supervisors_group().unique_directories] == ["42", "42"]
    assert joins == [42] * (tidied + 1)


def test_a_group_that_always_vanishes_is_not_joined_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(*_: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(Cgroup, "add_process", vanish)
    with pytest.raises(CgroupError, match="again and again"):
        CgroupSite({"unified": tmp_path}).supervisors_group().create_and_join(42)


def test_group_that_its_last_process_is_still_leaving_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError(16, "Device or resource busy"), OSError(16, "Device or resource busy")]
    real = Path.rmdir

    def rmdir(path: Path) -> None:
        if refusals:
            raise refusals.pop()
        real(path)

    (tmp_path / "r1").mkdir()
    monkeypatch.setattr(Path, "rmdir", rmdir)
    Cgroup({"unified": str(tmp_path / "r1")}).remove()
    assert list(tmp_path.iterdir()) == []


def test_group_with_processes_is_not_removed_and_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rmdir(path: Path) -> None:
        raise OSError(16, "Device or resource busy")

    fill(tmp_path, {"cgroup.procs": "7\n8\n"})
    monkeypatch.setattr(Path, "rmdir", rmdir)
    with pytest.raises(CgroupError) as caught:
        Cgroup({"unified": str(tmp_path)}).remove()
    assert "7, 8" in caught.value.remedy


def v1_group(root: Path) -> Cgroup:
    return Cgroup({name: str(root / name) for name in ("freezer", "memory", "cpu", "cpuacct", "pids")})


def fill(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        if not path.parent.exists():
            path.parent.mkdir()
        path.write_text(text)
