"""What a capture says last is what became of its snapshot, whatever becomes of its own files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cedana_sched.agent import capture
from cedana_sched.agent.capture_messages import CaptureCommitted, CaptureFailed, CaptureReport, encode
from cedana_sched.agent.workload_runtime import RunningContainer
from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.records import Transfer
from tests.unit.agent.test_capture_messages import request

COMMITTED = CaptureCommitted(SnapshotRef(Identity("team-a", "sim"), 3), Transfer())


def served(work: Path, patch: pytest.MonkeyPatch) -> list[CaptureReport]:
    """What a capture process with this directory of its own says."""
    reader, writer = os.pipe()
    os.write(writer, encode(replace(request(RunningContainer(7, work)), work_directory=str(work / "c1"))))
    os.close(writer)
    patch.setattr(capture, "_STDIN", reader)
    said: list[CaptureReport] = []
    try:
        assert capture._serve(said.append) == 0  # type: ignore[arg-type]
    finally:
        os.close(reader)
    return said


def test_a_directory_that_cannot_be_removed_does_not_undo_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(capture, "capture", lambda *_: COMMITTED)
    monkeypatch.setattr(os, "rmdir", refuse)
    assert served(tmp_path, monkeypatch) == [COMMITTED]


@pytest.mark.parametrize("fails", [False, True])
def test_a_failed_dump_alone_leaves_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    def end(*_: Any) -> CaptureReport:
        if fails:
            raise StoreUnavailableError("the store is away")
        return COMMITTED

    monkeypatch.setattr(capture, "capture", end)
    (said,) = served(tmp_path, monkeypatch)
    assert isinstance(said, CaptureFailed if fails else CaptureCommitted)
    assert (tmp_path / "c1").exists() is fails
