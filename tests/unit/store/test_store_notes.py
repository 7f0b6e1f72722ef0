"""This machine's notes of stores that it has seen are whole, or not there."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from cedana_sched.store.mark import NAME, StoreMark
from tests.unit.runtime.test_whole_files import full_disk


def test_a_note_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (tmp_path / NAME).write_text("0123\n")
    with capture_logs() as said, full_disk():
        StoreMark(tmp_path, notes).require()
    assert [one["event"] for one in said] == ["store not noted"]
    assert list(notes.iterdir()) == []
    assert not StoreMark(tmp_path, notes).was_seen
    StoreMark(tmp_path, notes).require()
    assert StoreMark(tmp_path, notes).was_seen
