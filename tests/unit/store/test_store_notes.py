"""This machine's notes of stores that it has seen are whole, or not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cedana_sched.store import link_safe_folders
from cedana_sched.store.store_presence import NAME, StorePresence
from tests.unit.runtime_handler.test_whole_files import full_disk


def test_a_note_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (tmp_path / NAME).write_text("0123\n")
    with capture_logs() as said, full_disk():
        StorePresence(tmp_path, notes).require_present()
    assert [one["event"] for one in said] == ["store not noted"]
    assert list(notes.iterdir()) == []
    assert not StorePresence(tmp_path, notes).was_seen
    StorePresence(tmp_path, notes).require_present()
    assert StorePresence(tmp_path, notes).was_seen


@pytest.mark.parametrize("writing", [False, True])
def test_a_store_that_another_thread_is_just_making_is_not_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing: bool
) -> None:
    """It has looked for the mark, and the other one has made it since; the folder of objects is not there yet."""
    mark, read, looked = StorePresence(tmp_path, None), link_safe_folders.read_file, False

    def read_before_it_is_made(root: Path, path: str, most: int) -> bytes:
        nonlocal looked
        if path == NAME and not looked:
            looked = True
            mark.require_present(writing=True)
            raise FileNotFoundError(path)
        return read(root, path, most)

    monkeypatch.setattr(link_safe_folders, "read_file", read_before_it_is_made)
    mark.require_present(writing=writing)
    assert looked
