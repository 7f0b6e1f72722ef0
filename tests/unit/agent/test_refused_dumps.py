"""A container whose snapshot could not be restored is thawed instead of saved; how requests arrive, small and large."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from cedana_sched.agent import workload_dump
from cedana_sched.agent.capture import _read_request_line
from cedana_sched.agent.workload_dump import WorkloadDump
from cedana_sched.agent.workload_runtime import Refusal, RunningContainer
from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot.image_stream_receiver import ImageWriter
from tests.unit.agent.test_capture_messages import request


class NoSink:
    def open_stream(self, name: str) -> ImageWriter:
        raise AssertionError(name)


def test_what_could_not_be_restored_is_thawed_and_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thawed: list[Path] = []

    def thaw(groups: Iterable[Path]) -> None:
        thawed.extend(groups)

    monkeypatch.setattr(workload_dump, "thaw_together", thaw)
    monkeypatch.setattr(workload_dump, "Dump", lambda *_: None)
    tree = RunningContainer(7, tmp_path, "main", refusal=Refusal("no record", "fewer files"))
    wanted = request(RunningContainer(8, tmp_path, "side"), tree)
    with pytest.raises(DumpError, match=r"no record \(fewer files\)"):
        WorkloadDump(wanted.toolchain, wanted, NoSink()).run()
    assert thawed == [tmp_path, tmp_path]


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (b"{}\n", True),
        (b"{" + 9_000_000 * b" " + b"}\n", True),
        (b"", False),
        (b"{", False),
        (b"{}\nstop\n", False),
    ],
    ids=["small", "large", "nothing", "incomplete", "cancelled"],
)
def test_requests_of_many_megabytes_arrive_soon(sent: bytes, arrives: bool) -> None:
    reads, writes = os.pipe()

    def send() -> None:
        with os.fdopen(writes, "wb") as pipe:
            pipe.write(sent)

    sender = threading.Thread(target=send)
    sender.start()
    line = _read_request_line(reads)
    sender.join()
    os.close(reads)
    assert line == (sent if arrives else b"")
