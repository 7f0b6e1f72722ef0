"""CRIU's log of a workload that makes it long: it takes little of the disk and of memory, and both its ends stay."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from cedana_sched.runtime_handler import progress_signs
from cedana_sched.runtime_handler.progress_signs import ProgressSigns

MIB = 1 << 20
LINE = b"(00.123456) Dumping path for -3 fd via self 12345 [/proc/4711/fd/]\n"


def grown(log: Path, by: int) -> None:
    """As CRIU writes it, which opens it to append."""
    with log.open("ab") as file:
        file.write(LINE * (by // len(LINE)))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "dump.log"
    path.write_bytes(b"(00.000001) CRIU run id = 0123\n")
    return path


def test_a_log_that_grows_without_end_takes_a_bounded_part_of_the_disk(log: Path) -> None:
    signs = ProgressSigns(os.getpid(), str(log), list)
    for _ in range(6):
        grown(log, 40 * MIB)
        signs.has_progressed()

    taken = log.stat().st_blocks * 512
    assert log.stat().st_size > 230 * MIB
    assert taken < progress_signs.TRIMMED_BYTES + 2 * progress_signs.KEPT_BYTES + 41 * MIB

    with log.open("ab") as file:
        file.write(b"(99.000000) Error (criu/x.c:1): the last\n")
    with log.open("rb") as file:
        assert file.read(4096).startswith(b"(00.000001) CRIU run id = 0123\n")
        file.seek(-progress_signs.KEPT_BYTES, os.SEEK_END)
        tail = file.read()
    assert b"\0" not in tail
    assert tail.endswith(b"the last\n")


def test_a_look_reads_little_of_what_is_new(log: Path) -> None:
    signs = ProgressSigns(os.getpid(), str(log), list)
    grown(log, 40 * MIB)
    tracemalloc.start()
    try:
        signs.has_progressed()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB


def test_a_small_log_is_read_once_from_its_beginning(log: Path) -> None:
    read = progress_signs.GrowingLog(str(log)).read_new
    assert read() == b"(00.000001) CRIU run id = 0123\n"
    grown(log, 1000)
    assert read() == LINE * (1000 // len(LINE))
    assert read() == b""


def test_there_may_be_no_log_yet(tmp_path: Path) -> None:
    assert progress_signs.GrowingLog(str(tmp_path / "none")).read_new() == b""
