"""From a restore container on a node to another Restore: the node's agent tells, a coordinator decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.cluster.coordinator.incarnation_numbers import IncarnationNumbers
from cedana_sched.cluster.coordinator.journal import ObjectJournal
from cedana_sched.cluster.coordinator.orders_to_agents import ObjectAgents
from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.cluster.coordinator.pod_reports import PodReports
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.node.containers.bundles import Incarnation
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.cluster.node.restoring.incarnation_reports import IncarnationReports
from cedana_sched.cluster.node.restoring.restore_states import IncarnationRecords
from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.shell import Coordinator
from cedana_sched.kube.builtin_kinds import Container, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.resources import RESTORES
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.orders import (
    FindSnapshot,
    Order,
    Outcome,
    RestoreSnapshot,
    RestoreSucceeded,
    SnapshotFound,
    Stage,
    Staged,
)
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.testing import FakeApi
from tests.unit.cluster.coordinator.filled_mirrors import SavedSnapshots, filled, known_checkpoints
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM
from tests.unit.cluster.node.bundle_tree import Host, state

MINE = {names.ID: "md", names.RESTORE_IDENTITY: "md/0@1"}
UID = "5f2b8c1e-6d7a-4c2f-9a52-2f6c0d8e1b37"
POD = Pod(
    Metadata("md-0", "bio", UID, annotations=MINE),
    PodSpec(node_name="n1", containers=(Container("main"),), init_containers=(Container(names.RESTORE_CONTAINER),)),
    PodStatus(phase="Running"),
)


class _Policies:
    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        del name
        return CheckpointPolicy()

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return CheckpointPolicy()


class Scene:
    """A node with its agent, the API server, and coordinators, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.server = FakeApi()
        self.host = Host(folder / "host")
        self.host.folder(self.host.places.states)
        self.served = IncarnationRecords(folder / "served")
        self.continued: list[str] = []
        self.told: list[str] = []
        self.attempt = 0
        self._coordinators = 0

    def told_by(self, tell: PublishEvent) -> None:
        self.told.append(tell.kind)

    def begin(self) -> None:
        """The kubelet makes a sandbox, and the restore container in it; what ran before has ended."""
        if self.attempt:
            for name in (f"s{self.attempt}", f"main{self.attempt}"):
                self.host.write(self.host.places.states / name / "state.json", state(start=1))
        self.attempt += 1
        self.host.container(f"s{self.attempt}", UID, "", kind="sandbox")
        self.host.container(f"c{self.attempt}", UID, names.RESTORE_CONTAINER, sandbox=f"s{self.attempt}")

    async def perform(self, order: Order) -> AsyncIterator[Outcome]:
        match order:
            case FindSnapshot(uid):
                yield SnapshotFound(uid, SnapshotRef(Identity("bio", "md"), 1))
            case Stage(uid):
                yield Staged(uid)
            case RestoreSnapshot(uid):
                number = self.attempt
                self.served.record_assignment(uid, UID, Incarnation(f"c{number}", f"s{number}"))
                self.host.write(self.host.places.states / f"c{number}" / "state.json", state(start=1))
                self.host.container(f"main{number}", UID, sandbox=f"s{number}")
                self.continued.append(uid)
                yield RestoreSucceeded(uid)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        feed = OrderFeed(self.server, "n1", self.perform)
        beginnings = IncarnationReports(
            self.server, feed.restores, lambda uid: POD if uid == UID else None, self.host.places, self.served
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(feed.run()), group.create_task(beginnings.run())]
            yield
            for task in tasks:
                task.cancel()

    @asynccontextmanager
    async def coordinator(self) -> AsyncIterator[None]:
        self._coordinators += 1
        api, dependencies = self.server, PodNodeDependencies()
        projection = Projection(api, SYSTEM)
        agents = ObjectAgents(api, projection, filled(), dependencies=dependencies)
        pods = filled(POD)
        pods.synced.set()
        nothing = cast("Any", None)
        access = ClusterAccess(api, nothing, pods, _Policies(), SavedSnapshots(), SYSTEM, nothing)
        reports = PodReports(access, dependencies, IncarnationNumbers(agents.restores), known_checkpoints())
        journal = ObjectJournal(
            api, SYSTEM, f"coordinator-{self._coordinators}", projection, dependencies.on_records_saved
        )
        listener = cast("Any", type("Listener", (), {"on_event": lambda _, tell: self.told_by(tell)})())
        async with asyncio.TaskGroup() as group:
            works = [group.create_task(work) for work in (projection.run(), agents.run(), reports.run())]
            async with Coordinator(
                journal=journal, adapters={"pods": reports}, agents=agents, clock=SystemClock(), listener=listener
            ):
                yield
            await projection.wait_flushed()
            for work in works:
                work.cancel()

    def restores(self) -> dict[str, tuple[str, str | None]]:
        """By uid: the step, and what the agent says of a new beginning."""
        found = self.server.all_of(RESTORES)
        return {
            one["spec"]["uid"]: (one["status"]["step"], one["status"].get("replacedBy"))
            for one in found
            if "status" in one
        }

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            await self.server.until(holds)

    async def runs(self, uid: str) -> None:
        await self.until(lambda: self.restores().get(uid, ("", None))[0] == "Running")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


FIRST, SECOND, THIRD = f"restore.{UID}", f"restore.{UID}.1", f"restore.{UID}.2"


async def test_pod_that_begins_again_and_again_has_a_restore_for_each_beginning(scene: Scene) -> None:
    async with scene.agent(), scene.coordinator():
        for uid in (FIRST, SECOND, THIRD):
            scene.begin()
            await scene.runs(uid)
    assert scene.continued == [FIRST, SECOND, THIRD]
    assert scene.restores() == {FIRST: ("Ended", "c2"), SECOND: ("Ended", "c3"), THIRD: ("Running", None)}
    assert scene.told.count("PodRestarted") == 2


async def test_coordinator_that_was_away_finds_the_beginning_and_none_after_it_repeats_it(scene: Scene) -> None:
    async with scene.agent():
        async with scene.coordinator():
            scene.begin()
            await scene.runs(FIRST)
        scene.begin()
        await scene.until(lambda: scene.restores()[FIRST][1] == "c2")
        for _ in range(3):
            async with scene.coordinator():
                await scene.runs(SECOND)
    assert scene.continued == [FIRST, SECOND]
    assert scene.restores() == {FIRST: ("Ended", "c2"), SECOND: ("Running", None)}


@pytest.mark.parametrize("agent_is_first", [True, False])
async def test_agent_that_was_away_tells_of_the_beginning(scene: Scene, agent_is_first: bool) -> None:
    """Its node has rebooted: the agent's container is made before the pod's, or after it."""
    async with scene.coordinator():
        async with scene.agent():
            scene.begin()
            await scene.runs(FIRST)
        if not agent_is_first:
            scene.begin()
        async with scene.agent():
            if agent_is_first:
                scene.begin()
            await scene.runs(SECOND)
    assert scene.continued == [FIRST, SECOND]


async def test_agent_and_coordinator_that_are_made_anew_take_a_running_pod_for_one(scene: Scene) -> None:
    for _ in range(3):
        async with scene.agent(), scene.coordinator():
            if not scene.attempt:
                scene.begin()
            await scene.runs(FIRST)
            for _ in range(50):
                await asyncio.sleep(0.001)
    assert scene.restores() == {FIRST: ("Running", None)}
    assert scene.continued == [FIRST]
