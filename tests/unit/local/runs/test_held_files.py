"""What happens if the files that a job holds cannot be recorded: who needs the record is not saved without it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from cedana_sched.agent.workload_runtime import RunningContainer
from cedana_sched.local.runs import held_files
from cedana_sched.local.runs.held_files import HeldFilesRecorder
from cedana_sched.runtime_handler import outside_files
from cedana_sched.runtime_handler.outside_files import OUTSIDE_FILES
from cedana_sched.runtime_handler.volume_file_comparison import MOST_FILES, VOLUME_FILES, VolumeFiles
from cedana_sched.snapshot import freezer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="starts processes of other users")


@pytest.fixture(params=[0, 65534], ids=["root", "nobody"])
def user(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def tree(user: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningContainer]:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user) as process:
        monkeypatch.setattr(freezer, "pids_in_cgroup", lambda _: [process.pid])
        yield RunningContainer(root_pid=process.pid, freezer=Path("/nowhere"))
        process.communicate()


def note(tree: RunningContainer) -> RunningContainer:
    return asyncio.run(HeldFilesRecorder().add_note("run", tree, ()))


def test_what_is_recorded_is_no_reason_to_refuse(tree: RunningContainer) -> None:
    noted = note(tree)
    assert noted.refusal is None
    assert list(noted.notes) == [VOLUME_FILES, OUTSIDE_FILES]


def test_a_record_of_files_that_may_run_ahead_is_no_reason_to_refuse(
    tree: RunningContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it cannot be made, it says so: a policy decides what follows at the restore."""
    monkeypatch.setattr(outside_files, "MOST_PLACES", 1)
    noted = note(tree)
    assert noted.refusal is None
    assert "when the snapshot was taken: they have more than 1 descriptors" in noted.notes[OUTSIDE_FILES]


def test_a_second_record_that_takes_too_long_is_no_reason_to_refuse(
    tree: RunningContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(held_files, "_MOST_SECONDS", 1.0)
    monkeypatch.setattr(held_files, "outside_files_of", lambda *_: released.wait())
    try:
        noted = note(tree)
    finally:
        released.set()
    assert noted.refusal is None
    assert "they were not found within 1 s" in noted.notes[OUTSIDE_FILES]


@pytest.mark.parametrize(("bound", "value"), [("_MOST_FILES", 1), ("_MOST_BYTES", 100)])
def test_only_jobs_of_root_are_saved_without_a_record(
    tree: RunningContainer, user: int, bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_files, bound, value)
    noted = note(tree)
    assert not noted.notes
    assert (noted.refusal is None) == (user == 0)
    if noted.refusal is not None:
        assert "cannot be recorded, so it could not be restored: " in noted.refusal.why
        assert "fewer processes" in noted.refusal.remedy


def test_a_file_that_cannot_be_seen_is_a_reason_too(
    tree: RunningContainer, user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> VolumeFiles:
        raise OSError("stale file handle")

    monkeypatch.setattr(held_files, "volume_files_of", fail)
    refusal = note(tree).refusal
    assert (refusal is None) == (user == 0)
    assert refusal is None or refusal.why.endswith("stale file handle")


def test_jobs_may_hold_more_files_than_containers(tree: RunningContainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mapping of each process counts."""
    bounds: list[int] = []

    def look(
        processes: Collection[int], volumes: Collection[str], most_bytes: int, saved: Collection[str], most_files: int
    ) -> VolumeFiles:
        assert processes
        bounds.extend((most_bytes, most_files))
        return VolumeFiles(tuple(volumes), (), tuple(saved))

    monkeypatch.setattr(held_files, "volume_files_of", look)
    assert note(tree).notes
    assert bounds == [64 << 20, 8 * MOST_FILES]
