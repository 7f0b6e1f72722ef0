"""The file of a terminal's output is opened with no more rights than its folder's owner has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cedana_sched.local.runs.terminal_output_file import open_terminal_output

USER = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the job's user, below folders that all may enter."""
    for parent in (tmp_path, *tmp_path.parents[:-1]):
        parent.chmod(parent.stat().st_mode | 0o711)
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, USER, USER)
    return own


def test_link_in_the_users_folder_leads_root_nowhere(folder: Path, tmp_path: Path) -> None:
    (folder / "out").symlink_to(tmp_path / "roots")
    with pytest.raises(OSError, match="out"):
        open_terminal_output(folder / "out", USER, USER)
    elsewhere = folder / "linked"
    elsewhere.symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        open_terminal_output(elsewhere / "roots", USER, USER)
    assert not (tmp_path / "roots").exists()
    assert os.geteuid() == 0


@pytest.mark.parametrize("of_user", [True, False])
def test_new_file_belongs_to_the_user(of_user: bool, folder: Path, tmp_path: Path) -> None:
    path = (folder if of_user else tmp_path) / "out"
    os.close(open_terminal_output(path, USER, USER))
    assert (path.stat().st_uid, path.stat().st_gid) == (USER, USER)
