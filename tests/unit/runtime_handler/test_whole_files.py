"""What is read after a restart is whole or absent: nobody finds half of it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from cedana_sched.runtime_handler.atomic_write import write_atomically
from cedana_sched.runtime_handler.plan import COLD, FORGO, ContainerPlan, Plan, read_plan, write_plan


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can be given content: as on a full disk, it can be made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for there in ([], [file]):
        with full_disk(), pytest.raises(OSError, match="too large"):
            write_atomically(file, b"new")
        assert list(tmp_path.iterdir()) == there
        file.write_bytes(b"old")
    assert file.read_bytes() == b"old"


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"1")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    write_atomically(file, b"2")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"2", 0o640)


def test_a_file_in_the_folder_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomically("file", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_plan_that_two_threads_write_at_a_time_is_never_half_of_one(tmp_path: Path) -> None:
    """A pod is deleted on its way back while another order decides for it; without a plan it would begin anew."""
    folder, containers = str(tmp_path), {"main": ContainerPlan("/images", "/work", criu=("x" * 20_000,))}
    plans = [Plan(FORGO, containers=containers), Plan(COLD, "why")]
    write_plan(folder, plans[0])

    def write(plan: Plan) -> None:
        for _ in range(200):
            write_plan(folder, plan)

    with ThreadPoolExecutor() as pool:
        writers: list[Future[None]] = [pool.submit(write, plan) for plan in plans]
        while not all(writer.done() for writer in writers):
            assert read_plan(folder) in plans
        for writer in writers:
            writer.result()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "results"]
