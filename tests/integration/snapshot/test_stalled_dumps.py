"""A dump that gets nowhere is ended long before its deadline, and says who does not move; the job runs on."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.dump import DumpInterruptedError
from tests.integration.snapshot.struck_criu import StrikingSink, stop
from tests.integration.snapshot.test_dump_failures import COUNTING, SlowSink, assert_runs_on

if TYPE_CHECKING:
    from tests.integration.snapshot.conftest import Laboratory

PAUSE_SECONDS = 0.2

pytestmark = pytest.mark.criu


def test_a_criu_that_hangs_is_ended_and_said_so(either_lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cedana_sched.snapshot.dump._ORDERLY_SECONDS", 0.3)
    lab = either_lab
    lab.python(COUNTING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpInterruptedError, match="CRIU made no progress for 5 s") as caught:
        lab.dump(StrikingSink(lab, stop), stall_seconds=5.0)
    assert any(line.startswith("CRIU itself: process") and "in state T" in line for line in caught.value.evidence)
    assert any(f"process {lab.pid} (tini)" in line for line in caught.value.evidence)
    assert_runs_on(lab)


def go_on_later(sink: SlowSink) -> None:
    """Twice as long after its first bytes as a store may take nothing."""
    assert sink.reached.wait(60)
    threading.Event().wait(4)
    sink.go_on.set()


def test_a_store_that_takes_nothing_is_told_from_a_criu_that_hangs(lab: Laboratory) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    sink = SlowSink()
    release = threading.Thread(target=go_on_later, args=(sink,))
    release.start()
    with pytest.raises(DumpInterruptedError, match="the store took nothing of the snapshot for 2 s"):
        lab.dump(sink, stall_seconds=1.0)
    release.join()
    assert_runs_on(lab)


def test_a_criu_that_hangs_before_it_begins_is_ended(lab: Laboratory) -> None:
    """It has written no log then, and connected to nothing."""
    lab.python(COUNTING)
    lab.await_lines(5)
    criu = lab.folder / "criu"
    criu.write_text("#!/bin/sh\nkill -STOP $$\n")
    criu.chmod(0o755)
    lab.toolchain = replace(lab.toolchain, criu=criu)
    freezer.freeze(lab.cgroup)
    with pytest.raises(DumpInterruptedError, match=r"CRIU made no progress for 0\.5 s"):
        lab.dump(stall_seconds=0.5)
    assert_runs_on(lab)


class TricklingSink:
    """Takes each part after a while that is shorter than what is allowed, all of them after longer."""

    def __init__(self) -> None:
        self.parts = 0
        self._turn = threading.Lock()

    def open_stream(self, name: str) -> TricklingSink:
        return self

    def write(self, data: memoryview) -> None:
        with self._turn:
            self.parts += 1
            threading.Event().wait(PAUSE_SECONDS)

    def close(self) -> None:
        pass


def test_a_slow_store_is_no_stall(lab: Laboratory) -> None:
    lab.python(COUNTING)
    lab.await_lines(5)
    freezer.freeze(lab.cgroup)
    sink = TricklingSink()
    lab.dump(sink, stall_seconds=0.5)
    assert sink.parts * PAUSE_SECONDS > 1.0
    freezer.thaw(lab.cgroup)
    assert_runs_on(lab)
