"""A workload that can be looked at for ever is frozen all the same, and holds up nobody else."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from cedana_sched.agent import workload_preflight
from cedana_sched.agent.limited_inspections import IN_ALL, PER_NAMESPACE
from cedana_sched.agent.workload_preflight import Preflight
from cedana_sched.snapshot.preflight import CutShortError, Obstacle
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime

ODD = Obstacle(1, "sim", "uses io_uring", "switch it off")


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Looks that do not return, as at a file of /proc that a process keeps locked."""
    go = threading.Event()

    def look(pids: Iterable[int], seconds: float) -> list[Obstacle]:
        go.wait()
        return [ODD]

    monkeypatch.setattr(workload_preflight, "find_obstacles", look)
    monkeypatch.setattr(workload_preflight, "GRACE_SECONDS", 0.01)
    yield go
    go.set()


async def test_looks_that_do_not_return_found_nothing_and_say_so(tmp_path: Path, stuck: threading.Event) -> None:
    looks = Preflight(FakeRuntime(tmp_path), seconds=0)
    with capture_logs() as said:
        assert await looks.find_freeze_obstacle(WORKLOAD) is None
    assert [(line["log_level"], line["workload"], line["reason"]) for line in said] == [
        ("warning", WORKLOAD.name, "the look does not end")
    ]


async def test_looks_that_do_not_return_leave_all_threads_to_others(tmp_path: Path, stuck: threading.Event) -> None:
    looks = Preflight(FakeRuntime(tmp_path), seconds=0)
    many = 3 * max(IN_ALL, (os.cpu_count() or 1) + 4)
    before = threading.active_count()
    pods = [replace(WORKLOAD, uid=str(number)) for number in range(many)]
    assert await asyncio.gather(*map(looks.find_freeze_obstacle, pods)) == [None] * many
    assert threading.active_count() - before <= PER_NAMESPACE
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(lambda: "a thread") == "a thread"


async def test_looks_that_do_not_return_delay_no_other_namespace(
    tmp_path: Path, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Preflight(FakeRuntime(tmp_path), seconds=0)
    pods = [replace(WORKLOAD, uid=str(number)) for number in range(3 * PER_NAMESPACE)]
    await asyncio.gather(*map(looks.find_freeze_obstacle, pods))
    monkeypatch.setattr(workload_preflight, "find_obstacles", lambda *_: [ODD])
    monkeypatch.setattr(workload_preflight, "GRACE_SECONDS", 60)
    assert await looks.find_freeze_obstacle(replace(WORKLOAD, uid="other", namespace="other")) == str(ODD)


async def test_many_looks_of_one_namespace_wait_for_their_turn(tmp_path: Path, stuck: threading.Event) -> None:
    stuck.set()
    looks = Preflight(FakeRuntime(tmp_path), seconds=60)
    pods = [replace(WORKLOAD, uid=str(number)) for number in range(10 * PER_NAMESPACE)]
    assert await asyncio.gather(*map(looks.find_freeze_obstacle, pods)) == [str(ODD)] * len(pods)


async def test_looks_that_are_cut_short_found_nothing_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(pids: Iterable[int], seconds: float) -> list[Obstacle]:
        raise CutShortError(f"the look would take more than {seconds:g} s")

    monkeypatch.setattr(workload_preflight, "find_obstacles", look)
    with capture_logs() as said:
        assert await Preflight(FakeRuntime(tmp_path), seconds=7).find_freeze_obstacle(WORKLOAD) is None
    assert [line["reason"] for line in said] == ["the look would take more than 7 s"]


async def test_what_is_found_is_said(tmp_path: Path, stuck: threading.Event) -> None:
    stuck.set()
    assert await Preflight(FakeRuntime(tmp_path)).find_freeze_obstacle(WORKLOAD) == str(ODD)
