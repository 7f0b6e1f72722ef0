"""Cgroups that are frozen together are all frozen, or all run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.snapshot.freezer import FreezerError, freeze_together, is_frozen


def cgroup(path: Path) -> Path:
    """One of the first generation that does as it is told."""
    path.mkdir()
    (path / "freezer.state").write_text("THAWED")
    (path / "cgroup.procs").write_text("")
    return path


def stubborn_cgroup(path: Path) -> Path:
    """One of the second generation that never freezes."""
    path.mkdir()
    (path / "cgroup.freeze").write_text("0")
    (path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (path / "cgroup.procs").write_text("")
    return path


def test_all_are_frozen(tmp_path: Path) -> None:
    cgroups = [cgroup(tmp_path / name) for name in "ab"]
    freeze_together(cgroups)
    assert all(map(is_frozen, cgroups))


def test_one_that_does_not_freeze_lets_all_run(tmp_path: Path) -> None:
    willing, stubborn = cgroup(tmp_path / "a"), stubborn_cgroup(tmp_path / "b")
    with pytest.raises(FreezerError, match=str(stubborn)) as caught:
        freeze_together([willing, stubborn], 0.05)
    assert str(willing) not in str(caught.value)
    assert not is_frozen(willing)
    assert (stubborn / "cgroup.freeze").read_text() == "0"


def test_of_many_that_do_not_freeze_a_few_are_named(tmp_path: Path) -> None:
    """A pod may have 256 containers, and its refusal becomes the message of its Checkpoint."""
    stubborn = [stubborn_cgroup(tmp_path / f"{n:03}") for n in range(256)]
    with pytest.raises(FreezerError, match="002 and 253 more did not freeze") as caught:
        freeze_together(stubborn, 0.05)
    assert str(stubborn[3]) not in str(caught.value)


def test_one_that_is_gone_lets_the_others_run(tmp_path: Path) -> None:
    willing = cgroup(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        freeze_together([willing, tmp_path / "gone"])
    assert not is_frozen(willing)


def test_a_cgroup_that_is_gone_counts_as_frozen(tmp_path: Path) -> None:
    assert is_frozen(tmp_path / "gone")
