"""Workloads are looked at soon after their start and on request, one at a time, and then no more."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cedana_sched.agent import workload_preflight
from cedana_sched.agent.inspection_schedule import (
    LOOK_AFTER_SECONDS,
    MOST_RETRIES,
    REQUEST_DISTANCE_SECONDS,
    RETRY_SECONDS,
    InspectionSchedule,
    Look,
)
from cedana_sched.agent.limited_inspections import IN_ALL, PER_NAMESPACE
from cedana_sched.agent.workload_inspections import WorkloadInspections
from cedana_sched.agent.workload_preflight import LONGEST_MESSAGE, Inspection, Preflight
from cedana_sched.agent.workload_runtime import RunningWorkload
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot.preflight import CutShortError, Obstacle
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime

OTHER = WorkloadRef(uid="w2", namespace="default", name="train", node="here")
RING = Obstacle(7, "node", "uses io_uring", "switch it off", "UsesIoUring")


def _looks(schedule: InspectionSchedule, until: float) -> list[tuple[float, Look]]:
    """All looks until then, each taken when it is due."""
    taken = []
    while (due := schedule.next_due()) is not None and due <= until:
        look = schedule.take_due(due)
        assert look is not None
        taken.append((due, look))
    return taken


def test_a_workload_is_looked_at_at_its_start_and_twice_more() -> None:
    schedule = InspectionSchedule()
    schedule.on_started(WORKLOAD, 100.0)
    assert _looks(schedule, 1e9) == [
        (100.0 + after, Look(WORKLOAD, is_last=after == LOOK_AFTER_SECONDS[-1], is_requested=False))
        for after in LOOK_AFTER_SECONDS
    ]


def test_one_that_ran_long_before_is_looked_at_once() -> None:
    """As after a restart of the agent."""
    schedule = InspectionSchedule()
    schedule.on_started(WORKLOAD, 100.0, ran_seconds=3600.0)
    schedule.on_started(OTHER, 100.0, ran_seconds=30.0)
    assert [(due, look.workload.uid, look.is_last) for due, look in _looks(schedule, 1e9)] == [
        (100.0, "w1", True),
        (100.0, "w2", False),
        (130.0, "w2", True),
    ]


def test_looks_that_were_missed_become_one() -> None:
    schedule = InspectionSchedule()
    schedule.on_started(WORKLOAD, 100.0)
    assert schedule.take_due(99.0) is None
    assert schedule.take_due(500.0) == Look(WORKLOAD, is_last=True, is_requested=False)
    assert schedule.next_due() is None


def test_requests_of_one_workload_have_a_distance() -> None:
    """A tenant may write the annotation a thousand times."""
    schedule = InspectionSchedule()
    schedule.request(WORKLOAD, 100.0)
    assert schedule.take_due(100.0) == Look(WORKLOAD, is_last=True, is_requested=True)
    for thousandth in range(1000):
        schedule.request(WORKLOAD, 100.0 + thousandth / 1000)
    assert [due for due, _ in _looks(schedule, 1e9)] == [100.0 + REQUEST_DISTANCE_SECONDS]
    schedule.request(WORKLOAD, 200.0)
    assert schedule.next_due() == 200.0


def test_a_request_leaves_the_later_looks_as_they_are() -> None:
    schedule = InspectionSchedule()
    schedule.on_started(WORKLOAD, 100.0)
    assert schedule.take_due(100.0) is not None
    schedule.request(WORKLOAD, 105.0)
    assert [(due, look.is_requested) for due, look in _looks(schedule, 1e9)] == [(110.0, True), (160.0, False)]


def test_a_failed_look_is_repeated_and_given_up() -> None:
    schedule = InspectionSchedule()
    schedule.request(WORKLOAD, 0.0)
    at = []
    while (due := schedule.next_due()) is not None:
        at.append(due)
        look = schedule.take_due(due)
        assert look is not None
        assert look.is_requested
        schedule.on_failed(look, due)
    assert at == [0.0, 10.0, 30.0, 70.0, 150.0, 310.0]
    assert len(at) == 1 + MOST_RETRIES


def test_who_is_gone_is_looked_at_no_more() -> None:
    schedule = InspectionSchedule()
    schedule.on_started(WORKLOAD, 0.0)
    look = schedule.take_due(0.0)
    assert look is not None
    schedule.drop(WORKLOAD.uid)
    schedule.on_failed(look, 0.0)
    assert schedule.next_due() is None


class _Node:
    """Looks that a test lets go on, and what is published of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looked: list[tuple[str, bool]] = []
        self.published: asyncio.Queue[tuple[str, Inspection]] = asyncio.Queue()
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.failures: list[Exception] = []
        self.inspections = WorkloadInspections(self.inspect, self.publish, now=lambda: self.now)

    async def inspect(self, workload: WorkloadRef, *, peers: bool) -> Inspection | None:
        self.looked.append((workload.uid, peers))
        self.begun.set()
        await self.go.wait()
        return Inspection() if workload.uid != "gone" else None

    async def publish(self, look: Look, inspection: Inspection) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.published.put_nowait((look.workload.uid, inspection))


@pytest.fixture
async def node() -> _Node:
    return _Node()


async def test_one_workload_is_looked_at_at_a_time(node: _Node) -> None:
    node.go.clear()
    task = asyncio.create_task(node.inspections.run())
    try:
        node.inspections.on_started(WORKLOAD, ran_seconds=100)
        node.inspections.on_started(OTHER, ran_seconds=100)
        async with asyncio.timeout(60):
            await node.begun.wait()
            assert node.looked == [("w1", True)]
            node.go.set()
            assert [(await node.published.get())[0] for _ in range(2)] == ["w1", "w2"]
    finally:
        task.cancel()


async def test_only_the_last_look_asks_for_peers(node: _Node) -> None:
    """Each peer costs a request."""
    task = asyncio.create_task(node.inspections.run())
    try:
        node.inspections.on_started(WORKLOAD)
        async with asyncio.timeout(60):
            for now in (10.0, 60.0):
                await node.published.get()
                node.now = now
                node.inspections.drop("nobody")
                node.inspections._changed.set()
            await node.published.get()
        assert node.looked == [("w1", False), ("w1", False), ("w1", True)]
    finally:
        task.cancel()


@pytest.mark.parametrize("failure", [RetryableError("no answer"), OSError("no descriptors"), ValueError("a defect")])
async def test_a_failure_of_one_look_leaves_the_others(node: _Node, failure: Exception) -> None:
    node.failures.append(failure)
    task = asyncio.create_task(node.inspections.run())
    try:
        with capture_logs() as said:
            node.inspections.on_started(WORKLOAD, ran_seconds=100)
            node.inspections.on_started(OTHER, ran_seconds=100)
            async with asyncio.timeout(60):
                assert (await node.published.get())[0] == "w2"
        assert [(line["workload"], line["log_level"]) for line in said] == [
            (WORKLOAD.name, "error" if isinstance(failure, ValueError) else "warning")
        ]
    finally:
        task.cancel()


async def test_what_a_look_finds_has_a_reason_and_is_printable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Obstacle(7, "no\x1b[2Jde\n", "uses io_uring", "x" * 5000, "UsesIoUring")]
    monkeypatch.setattr(workload_preflight, "find_obstacles", lambda *_: found)
    inspection = await Preflight(FakeRuntime(tmp_path)).inspect(WORKLOAD, peers=False)
    assert inspection is not None
    assert inspection.obstacle is not None
    assert inspection.obstacle.reason == "UsesIoUring"
    assert inspection.obstacle.message.startswith("process 7 (no?[2Jde?) uses io_uring: xxx")
    assert len(inspection.obstacle.message) == LONGEST_MESSAGE


async def test_a_connection_to_a_peer_is_an_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_peer(workload: WorkloadRef, addresses: Iterable[str]) -> str | None:
        return "md-worker-0" if set(addresses) == {"10.0.0.2"} else None

    monkeypatch.setattr(workload_preflight, "find_obstacles", lambda *_: [])
    monkeypatch.setattr(workload_preflight, "remote_addresses", lambda _: {"10.0.0.2"})
    preflight = Preflight(FakeRuntime(tmp_path), find_peer)
    assert await preflight.inspect(WORKLOAD, peers=False) == Inspection()
    inspection = await preflight.inspect(WORKLOAD, peers=True)
    assert inspection is not None
    assert inspection.obstacle is not None
    assert inspection.obstacle.reason == "ConnectedToPeer"
    assert "it is connected to md-worker-0" in inspection.obstacle.message


async def test_nothing_is_said_of_what_does_not_run(tmp_path: Path) -> None:
    runtime = FakeRuntime(tmp_path)
    runtime.runs = False
    assert await Preflight(runtime).inspect(WORKLOAD, peers=True) is None


async def test_a_look_that_is_cut_short_knows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(pids: Iterable[int], seconds: float) -> list[Obstacle]:
        raise CutShortError(f"the look would take more than {seconds:g} s")

    monkeypatch.setattr(workload_preflight, "find_obstacles", look)
    inspection = await Preflight(FakeRuntime(tmp_path), seconds=7).inspect(WORKLOAD, peers=True)
    assert inspection == Inspection(unfinished="the look would take more than 7 s")


async def test_a_look_that_does_not_return_has_one_thread_and_delays_no_freeze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    looks: list[int] = []

    def look(pids: Iterable[int], seconds: float) -> list[Obstacle]:
        looks.append(os.getpid())
        if len(looks) == 1:
            go.wait()
        return [RING]

    monkeypatch.setattr(workload_preflight, "find_obstacles", look)
    monkeypatch.setattr(workload_preflight, "GRACE_SECONDS", 0.01)
    preflight = Preflight(FakeRuntime(tmp_path), seconds=0)
    try:
        assert await preflight.inspect(WORKLOAD, peers=True) == Inspection(unfinished="the look does not end")
        for _ in range(20):
            inspection = await preflight.inspect(WORKLOAD, peers=True)
            assert inspection == Inspection(unfinished="an earlier look has not returned", is_postponed=True)
        monkeypatch.setattr(workload_preflight, "GRACE_SECONDS", 60)
        assert await preflight.find_freeze_obstacle(WORKLOAD) == str(RING)
        other = await preflight.inspect(OTHER, peers=True)
        assert other is not None
        assert other.obstacle is not None
    finally:
        go.set()


def _pod(number: int, namespace: str = "default") -> WorkloadRef:
    return WorkloadRef(uid=f"{namespace}-{number}", namespace=namespace, name=f"pod-{number}", node="here")


async def test_pods_whose_looks_do_not_return_take_the_turn_of_their_namespace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def look(pids: Iterable[int], seconds: float) -> list[Obstacle]:
        go.wait()
        return []

    monkeypatch.setattr(workload_preflight, "find_obstacles", look)
    monkeypatch.setattr(workload_preflight, "GRACE_SECONDS", 0.01)
    preflight = Preflight(FakeRuntime(tmp_path), seconds=0)
    before = threading.active_count()
    try:
        for number in range(PER_NAMESPACE):
            inspection = await preflight.inspect(_pod(number), peers=False)
            assert inspection == Inspection(unfinished="the look does not end")
        postponed = await preflight.inspect(_pod(PER_NAMESPACE), peers=False)
        why = f"{PER_NAMESPACE} looks at other workloads of its namespace have not returned"
        assert postponed == Inspection(unfinished=why, is_postponed=True)
        assert threading.active_count() - before <= PER_NAMESPACE
        monkeypatch.setattr(workload_preflight, "GRACE_SECONDS", 60)
        monkeypatch.setattr(workload_preflight, "find_obstacles", lambda *_: [RING])
        other = await preflight.inspect(_pod(0, "other"), peers=False)
        assert other is not None
        assert other.obstacle is not None
    finally:
        go.set()
    async with asyncio.timeout(60):
        while (again := await preflight.inspect(_pod(PER_NAMESPACE), peers=False)) == postponed:  # noqa: ASYNC110 - threads return
            await asyncio.sleep(0)
    assert again is not None
    assert again.obstacle is not None


async def test_all_namespaces_together_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(workload_preflight, "find_obstacles", lambda *_: go.wait())
    monkeypatch.setattr(workload_preflight, "GRACE_SECONDS", 0.01)
    preflight = Preflight(FakeRuntime(tmp_path), seconds=0)
    try:
        for number in range(IN_ALL):
            await preflight.inspect(_pod(0, f"namespace-{number}"), peers=False)
        inspection = await preflight.inspect(_pod(0, "last"), peers=False)
    finally:
        go.set()
    why = f"{IN_ALL} looks at other workloads of its node have not returned"
    assert inspection == Inspection(unfinished=why, is_postponed=True)


async def test_workload_whose_processes_cannot_be_listed_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of a volume whose server is gone does not return."""

    class StuckRuntime(FakeRuntime):
        async def find_running(self, workload: WorkloadRef) -> RunningWorkload | None:
            if workload == WORKLOAD:
                await asyncio.Event().wait()
            return await super().find_running(workload)

    monkeypatch.setattr(workload_preflight, "find_obstacles", lambda *_: [RING])
    monkeypatch.setattr(workload_preflight, "GRACE_SECONDS", 0.01)
    preflight = Preflight(StuckRuntime(tmp_path), seconds=0)
    async with asyncio.timeout(60):
        assert await preflight.find_freeze_obstacle(WORKLOAD) is None
        assert await preflight.inspect(WORKLOAD, peers=True) == Inspection(unfinished="the look does not end")
        monkeypatch.setattr(workload_preflight, "GRACE_SECONDS", 60)
        other = await preflight.inspect(OTHER, peers=True)
    assert other is not None
    assert other.obstacle is not None


async def test_look_that_did_not_begin_is_repeated() -> None:
    postponed = [Inspection(unfinished="others have not returned", is_postponed=True), Inspection()]
    published: asyncio.Queue[Inspection] = asyncio.Queue()
    now = 0.0

    async def inspect(workload: WorkloadRef, *, peers: bool) -> Inspection:
        return postponed.pop(0)

    async def publish(look: Look, inspection: Inspection) -> None:
        published.put_nowait(inspection)

    inspections = WorkloadInspections(inspect, publish, InspectionSchedule(()), lambda: now)
    task = asyncio.create_task(inspections.run())
    try:
        inspections.on_started(WORKLOAD, ran_seconds=100)
        async with asyncio.timeout(60):
            assert (await published.get()).is_postponed
            now = RETRY_SECONDS
            inspections.on_started(OTHER)
            assert await published.get() == Inspection()
    finally:
        task.cancel()
