"""The output files of a saved job are those that its PID 1 has as standard output and error."""

from __future__ import annotations

from pathlib import Path

from cedana_sched.runtime_handler.outside_files import Holder, OutsideFile, OutsideFiles
from cedana_sched.snapshot.job_outputs import saved_outputs


def file(path: str, *holders: tuple[int, str]) -> OutsideFile:
    return OutsideFile(path, 1, 2, 3, 4, tuple(Holder(pid, place, 1, 0) for pid, place in holders))


def test_only_the_streams_of_pid_1_are_outputs() -> None:
    out, err = file("/home/out", (7, "fd/5"), (1, "fd/1")), file("/home/err", (1, "fd/2"))
    others = file("/home/data", (1, "fd/3"), (2, "fd/1")), file("/home/in", (1, "fd/0"))
    assert saved_outputs(OutsideFiles((out, *others, err))) == (Path("/home/out"), Path("/home/err"))


def test_without_a_record_none_are_known() -> None:
    assert not saved_outputs(None)
    assert not saved_outputs(OutsideFiles(problem="too many"))
