"""Control groups, on trees of files that look like both versions of /sys/fs/cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.machine.cgroups import ControlGroup, hand_down, missing_controllers


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """As on Debian: two controllers share a hierarchy, with links for each."""
    for name in ("cpu,cpuacct", "cpuset", "memory", "pids", "freezer", "systemd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("1\n")
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-3\n")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0\n")
    return tmp_path


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.procs").write_text("1\n")
    return tmp_path


def _grow(folder: Path, **files: str) -> Path:
    """The files that the kernel puts into a new group."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_controllers_of_a_shared_hierarchy_are_found(version_1: Path) -> None:
    assert missing_controllers(version_1) == []


def test_missing_controller_of_version_1_is_named(version_1: Path) -> None:
    (version_1 / "pids" / "cgroup.procs").unlink()
    assert missing_controllers(version_1) == ["pids"]


def test_missing_controller_of_version_2_is_named(version_2: Path) -> None:
    (version_2 / "cgroup.controllers").write_text("cpu io memory\n")
    assert missing_controllers(version_2) == ["cpuset", "pids"]


def test_nothing_is_offered_where_nothing_is_mounted(tmp_path: Path) -> None:
    assert missing_controllers(tmp_path / "absent") == ["cpu", "cpuset", "memory", "pids"]


def test_group_of_version_1_is_made_in_every_hierarchy_with_its_parents_processors(version_1: Path) -> None:
    for path in ("clusters", "clusters/one"):
        _grow(version_1 / "cpuset" / path, cpuset__cpus="\n", cpuset__mems="\n")

    ControlGroup("clusters/one", version_1).create()

    hierarchies = ("cpu,cpuacct", "cpuset", "memory", "pids", "freezer", "systemd")
    assert all((version_1 / name / "clusters/one").is_dir() for name in hierarchies)
    assert (version_1 / "cpuset/clusters/one/cpuset.cpus").read_text() == "0-3\n"
    assert (version_1 / "cpuset/clusters/one/cpuset.mems").read_text() == "0\n"


def test_processes_of_version_1_join_the_group_in_every_hierarchy_and_no_leaf(version_1: Path) -> None:
    group = ControlGroup("clusters/one", version_1)

    assert len(group.doors()) == 6
    assert group.leaf_doors() == []


def test_group_of_version_2_is_given_what_its_parents_have(version_2: Path) -> None:
    offered = {"cgroup__controllers": "cpu memory", "cgroup__subtree_control": ""}
    parent = _grow(version_2 / "clusters", **offered)

    ControlGroup("clusters/one", version_2).create()

    # a fake file keeps the last write only
    assert (version_2 / "cgroup.subtree_control").read_text() == "+pids"
    assert (parent / "cgroup.subtree_control").read_text() == "+memory"


def test_processes_of_version_2_begin_in_a_leaf_of_their_group(version_2: Path) -> None:
    _grow(version_2 / "clusters", cgroup__controllers="", cgroup__subtree_control="")
    group = ControlGroup("clusters/one", version_2)
    group.create()

    assert group.doors() == [version_2 / "clusters/one/cgroup.procs"]
    assert group.leaf_doors() == [version_2 / "clusters/one/init/cgroup.procs"]
    assert group.leaf_doors()[0].parent.is_dir()


def test_controllers_that_are_handed_down_already_are_not_written_again(tmp_path: Path) -> None:
    group = _grow(tmp_path / "group", cgroup__controllers="cpu memory", cgroup__subtree_control="cpu memory")

    hand_down(group)

    assert (group / "cgroup.subtree_control").read_text() == "cpu memory"


def test_group_that_the_kernel_refuses_is_one_sentence(version_1: Path) -> None:
    (version_1 / "memory" / "clusters").write_text("in the way")

    with pytest.raises(ClusterError, match=r"^the control group clusters/one cannot be made: .*; see whether control"):
        ControlGroup("clusters/one", version_1).create()


def test_processes_are_those_of_the_group_and_all_below_it(version_1: Path) -> None:
    _grow(version_1 / "memory/clusters/one", cgroup__procs="10\n11\n")
    _grow(version_1 / "pids/clusters/one/pod", cgroup__procs="11\n12\n0\n")
    _grow(version_1 / "pids/clusters/other", cgroup__procs="13\n")

    assert ControlGroup("clusters/one", version_1).processes() == {10, 11, 12}


def test_freezing_writes_version_1s_word_and_waits_for_it(version_1: Path) -> None:
    state = _grow(version_1 / "freezer/clusters/one", freezer__state="THAWED") / "freezer.state"
    unified = _grow(version_1 / "systemd/clusters/one", cgroup__freeze="0") / "cgroup.freeze"
    group = ControlGroup("clusters/one", version_1)

    group.freeze()

    assert (state.read_text(), unified.read_text()) == ("FROZEN", "0")
    group.thaw()
    assert state.read_text() == "THAWED"


def test_freezing_writes_version_2s_number(version_2: Path) -> None:
    folder = _grow(version_2 / "clusters/one", cgroup__freeze="0", cgroup__events="populated 1\nfrozen 1\n")
    group = ControlGroup("clusters/one", version_2)

    group.freeze()

    assert (folder / "cgroup.freeze").read_text() == "1"
    group.thaw()
    assert (folder / "cgroup.freeze").read_text() == "0"


def test_group_without_a_freezer_says_so(version_2: Path) -> None:
    (version_2 / "clusters/one").mkdir(parents=True)

    with pytest.raises(ClusterError, match=r"cannot be frozen; boot a kernel with the freezer"):
        ControlGroup("clusters/one", version_2).freeze()


def test_end_takes_the_group_and_its_empty_parents_and_leaves_the_neighbours(version_1: Path) -> None:
    for folder in ("memory/clusters/one/pod", "pids/clusters/one", "pids/clusters/two"):
        (version_1 / folder).mkdir(parents=True)

    ControlGroup("clusters/one", version_1).end()

    assert not (version_1 / "memory/clusters").exists()
    assert [path.name for path in (version_1 / "pids/clusters").iterdir()] == ["two"]


def test_end_of_what_never_was_is_nothing(version_2: Path) -> None:
    ControlGroup("clusters/one", version_2).end()
    assert not (version_2 / "clusters").exists()


def test_group_does_not_hold_a_process_of_another(version_2: Path) -> None:
    assert not ControlGroup("clusters/one", version_2).holds(os.getpid())
