"""A deleted pod ends after the grace that its owner gave it, not after the longer one that a hold needs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from cedana_sched.cluster.node.grace_period_enforcer import (
    OriginalGraceEnforcer,
    longest_grace_seconds,
    only_sidecars_are_left,
    own_grace_seconds,
)
from cedana_sched.kube.builtin_kinds import Container, ContainerStatus, Metadata, Pod, PodSpec, PodStatus, Probe
from cedana_sched.model.objects import names


def _pod(own: str = "0", *, asked: int | None = 630, raised: int = 630) -> Pod:
    annotations = {names.ORIGINAL_GRACE_PERIOD: own} if own else {}
    metadata = Metadata(
        "md-0",
        "bio",
        "uid-1",
        annotations=annotations,
        deletion_timestamp="2030-01-01T00:00:00Z",
        deletion_grace_period_seconds=asked,
    )
    return Pod(metadata, PodSpec(termination_grace_period_seconds=raised))


@pytest.mark.parametrize(
    ("pod", "seconds"),
    [
        (_pod("5"), 5.0),
        (_pod("5", asked=1), 1.0),
        (_pod("5", asked=100), 100.0),
        (_pod("5", asked=0), None),
        (_pod("9" * 400), 630.0),
        (_pod(""), None),
        (_pod("soon"), None),
    ],
)
def test_the_owners_grace_counts_unless_the_deletion_names_another(pod: Pod, seconds: float | None) -> None:
    assert own_grace_seconds(pod) == seconds


RUNS: dict[str, dict[str, Any]] = {"running": {}}
DONE: dict[str, dict[str, Any]] = {"terminated": {"exitCode": 0}}
FAILED: dict[str, dict[str, Any]] = {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("policy", "states", "phase", "left"),
    [
        ("Never", (DONE,), "Running", True),
        ("Never", (FAILED,), "Running", True),
        ("Never", (DONE, RUNS), "Running", False),
        ("Never", (), "Pending", False),
        ("Never", (DONE,), "Succeeded", False),
        ("OnFailure", (DONE,), "Running", True),
        ("OnFailure", (DONE, FAILED), "Running", False),
        ("Always", (DONE,), "Running", False),
    ],
)
def test_sidecars_are_ended_when_nothing_else_will_run(
    policy: str, states: tuple[dict[str, dict[str, Any]], ...], phase: str, left: bool
) -> None:
    statuses = tuple(ContainerStatus(f"c{number}", state=state) for number, state in enumerate(states))
    containers = tuple(Container(status.name) for status in statuses) or (Container("c0"),)
    spec = PodSpec(containers=containers, restart_policy=policy)
    assert only_sidecars_are_left(Pod(Metadata("md-0"), spec, PodStatus(phase, container_statuses=statuses))) is left


class _Node:
    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.killed: list[str] = []
        self.kill_seen = asyncio.Event()
        self.is_deleted = False
        self.main = "c-1"
        """Which container runs as `main`."""
        self.grace = OriginalGraceEnforcer(self._released, self._is_deleted, self)

    async def _released(self, uid: str) -> None:
        await self.let_go.wait()

    async def _is_deleted(self, pod: Pod) -> bool:
        return self.is_deleted

    async def find_container_id(self, pod_uid: str, name: str) -> str | None:
        return self.main if name == "main" else None

    async def kill_container(self, pod_uid: str, identifier: str) -> None:
        await self.kill(identifier)

    async def kill(self, uid: str) -> None:
        self.killed.append(uid)
        self.kill_seen.set()


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_held_pod_is_not_killed_before_its_release() -> None:
    node = _Node()
    async with asyncio.TaskGroup() as group:
        node.grace.on_pod_ending(_pod(), group)
        await _turns()
        assert node.killed == []
        node.let_go.set()
        await node.kill_seen.wait()
    assert node.killed == ["uid-1"]


def _living(own: str = "0", liveness: Probe | None = None, startup: Probe | None = None) -> Pod:
    metadata = Metadata("md-0", "bio", "uid-1", annotations={names.ORIGINAL_GRACE_PERIOD: own})
    main = Container("main", liveness_probe=liveness, startup_probe=startup)
    return Pod(metadata, PodSpec(termination_grace_period_seconds=630, containers=(main,)))


async def test_container_of_a_pod_that_goes_on_has_its_owners_grace_as_well() -> None:
    node = _Node()
    async with asyncio.TaskGroup() as group:
        node.grace.on_container_ending(_living(), "main", group)
        await _turns()
        assert node.killed == [], "something is held"
        node.let_go.set()
    assert node.killed == ["c-1"], "the pod itself goes on"


async def test_container_that_has_followed_another_is_not_killed() -> None:
    node = _Node()
    async with asyncio.TaskGroup() as group:
        node.grace.on_container_ending(_living(), "main", group)
        await _turns()
        node.main = "c-2"
        node.let_go.set()
    assert node.killed == []


async def test_calls_for_a_container_wait_as_one_and_go_with_their_pod() -> None:
    """A pod's own probes can make them as well, every second."""
    node = _Node()
    before = len(asyncio.all_tasks())
    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            for name in ("main", "no container of it"):
                node.grace.on_container_ending(_living(), name, group)
            await _turns()
        assert len(asyncio.all_tasks()) == before + 1
        node.grace.on_pod_gone("uid-1")
    assert node.killed == []
    assert not node.grace._container_ends
    assert not node.grace._called_again


async def test_container_that_is_ended_again_after_it_was_started_anew_has_its_grace_as_well() -> None:
    node = _Node()
    async with asyncio.TaskGroup() as group:
        node.grace.on_container_ending(_living(), "main", group)
        await _turns()
        node.main = "c-2"
        node.grace.on_container_ending(_living(), "main", group)
        node.let_go.set()
    assert node.killed == ["c-2"]


async def test_container_of_a_pod_that_was_deleted_meanwhile_has_the_grace_of_the_deletion() -> None:
    node = _Node()
    node.is_deleted = True
    node.let_go.set()
    async with asyncio.TaskGroup() as group:
        node.grace.on_container_ending(_living(), "main", group)
        node.grace.on_container_ending(_pod(), "main", group)
    assert node.killed == []


@pytest.mark.parametrize(
    ("pod", "seconds"),
    [
        (_living("5"), 5.0),
        (_living("5", liveness=Probe(60)), 60.0),
        (_living("5", liveness=Probe(), startup=Probe(2)), 5.0),
        (_pod("", asked=None), None),
    ],
)
def test_a_probe_may_have_more_patience_than_its_pod(pod: Pod, seconds: float | None) -> None:
    assert longest_grace_seconds(pod, "main") == seconds


async def test_pod_that_is_gone_is_forgotten() -> None:
    node = _Node()
    async with asyncio.TaskGroup() as group:
        node.grace.on_pod_ending(_pod(), group)
        await _turns()
        node.grace.on_pod_gone("uid-1")
        node.let_go.set()
    assert node.killed == []


async def test_shorter_grace_takes_the_place_of_the_longer_one() -> None:
    node = _Node()
    node.let_go.set()
    long = _pod("0", asked=600)
    shorter = replace(long, metadata=replace(long.metadata, deletion_grace_period_seconds=630))
    async with asyncio.TaskGroup() as group:
        node.grace.on_pod_ending(long, group)
        await _turns()
        node.grace.on_pod_ending(shorter, group)
        await node.kill_seen.wait()
    assert node.killed == ["uid-1"]
