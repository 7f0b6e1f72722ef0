"""An archived Checkpoint shows that its pod has ended since, so that no later leader takes the pod for a lost one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator.archived_pod_ends import ArchivedPodEnds
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.cluster.coordinator.pod_fencing import PodFencing
from cedana_sched.kube.builtin_kinds import DISRUPTED, Condition, Metadata, Node, Pod, PodSpec, PodStatus
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import AfterCommit
from cedana_sched.model.records import Checkpoint, CheckpointStep
from tests.unit.cluster.coordinator.deletion_server import SYSTEM, DeletionServer, FieldWriter
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.test_object_journal import READY

SAVED = replace(READY, after_commit=AfterCommit.LEAVE_RUNNING)
COLLECTED = (Condition(DISRUPTED, "True", reason="DeletionByPodGC"),)


def saved(generation: int, **changes: Any) -> Checkpoint:
    return replace(SAVED, uid=f"md.{generation}", snapshot=SnapshotRef(SAVED.identity, generation), **changes)


def pod(phase: str, uid: str = SAVED.workload.uid, conditions: tuple[Condition, ...] = ()) -> Pod:
    annotations = {names.ID: SAVED.identity.id, names.INDEX: str(SAVED.identity.index)}
    metadata = Metadata(f"name-of-{uid}", "bio", uid, resource_version=phase, annotations=annotations)
    return Pod(metadata, PodSpec(node_name="node-1"), PodStatus(phase=phase, conditions=conditions))


class Leader(FieldWriter):
    """The caches of one coordinator, and what it writes."""

    def __init__(self, server: DeletionServer, *pods: Pod, nodes: tuple[Node, ...] = ()) -> None:
        self.pods: Informer[Pod] = filled(*pods)
        checkpoints = CheckpointsById(server.checkpoints)
        self.fencing = PodFencing(self.pods, filled(*nodes), checkpoints, filled())
        ends = ArchivedPodEnds(server, checkpoints, self.pods, self.fencing)
        super().__init__(server, "workloadEnded", ends.run)

    async def settle(self) -> None:
        for _ in range(200):  # whoever could write has written
            await asyncio.sleep(0)


NODE = Node(Metadata("node-1", resource_version="1"))
SUCCESSOR = pod("Pending", "successor")


async def test_an_end_long_after_the_last_snapshot_is_no_loss_for_the_next_leader() -> None:
    server = DeletionServer()
    earlier, newest = server.add(saved(1)), server.add(saved(2))
    async with Leader(server, pod("Running"), nodes=(NODE,)) as first:
        await first.settle()
        assert not first.is_marked(newest), "it runs"
        first.pods._put(pod("Failed"))
        await first.wait_marked(newest)
        await first.settle()
        assert not first.is_marked(earlier), "only the newest snapshot counts"
    second = DeletionServer()
    second.put(newest[0], server.objects[newest])
    async with Leader(second) as leader:
        assert leader.fencing.predecessor_of(SUCCESSOR).loss is None


async def test_a_coordinator_that_leads_records_it() -> None:
    server = DeletionServer()
    key = server.add(saved(1))
    leads = LeadingCoordinator(server, CoordinatorConfiguration(namespace=SYSTEM), "me")
    async with asyncio.timeout(60), leads.run_coordinator():
        body = msgspec.to_builtins(pod("Failed"))
        body["metadata"]["labels"] = {names.PROTECTED: "true"}
        server.put(PODS, body)
        await server.until(lambda: server.objects[key]["status"].get("workloadEnded") is True)


async def test_an_end_is_recorded_once_the_record_is_archived_though_the_pod_is_gone() -> None:
    server = DeletionServer()
    tracked = server.add(saved(1), labels={names.NODE: "node-1"})
    async with Leader(server, pod("Running"), nodes=(NODE,)) as leader:
        leader.pods._put(pod("Succeeded"))
        leader.pods._drop(pod("Succeeded"))
        await leader.settle()
        assert not leader.is_marked(tracked), "its record does that"
        server.objects[tracked]["metadata"]["labels"][names.ARCHIVED] = "true"
        server.tell(tracked)
        await leader.wait_marked(tracked)


async def test_a_new_leader_records_the_ends_of_the_pods_that_it_finds() -> None:
    server = DeletionServer()
    key = server.add(saved(1))
    async with Leader(server, pod("Succeeded")) as leader:
        await leader.wait_marked(key)


async def test_changes_of_a_finished_pod_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may write annotations many times a second, and have many Checkpoints."""
    server = DeletionServer()
    keys = [server.add(saved(generation)) for generation in range(1, 30)]
    searches: list[tuple[Any, ...]] = []
    find = CheckpointsById.newest_ready_checkpoint_of

    def search(*arguments: Any) -> Any:
        searches.append(arguments)
        return find(*arguments)

    monkeypatch.setattr(CheckpointsById, "newest_ready_checkpoint_of", search)
    async with Leader(server, pod("Failed")) as leader:
        await leader.wait_marked(keys[-1])
        await leader.settle()
        searches.clear()
        for _ in range(100):
            leader.pods._put(pod("Failed"))
        await leader.settle()
    assert not searches


@pytest.mark.parametrize(
    ("record", "ended"),
    [
        pytest.param(saved(1), pod("Failed", conditions=COLLECTED), id="lost with its node"),
        pytest.param(saved(1), pod("Failed", "another"), id="another pod"),
        pytest.param(saved(1, after_commit=AfterCommit.STOP), pod("Failed"), id="stopped after its snapshot"),
        pytest.param(saved(1, step=CheckpointStep.FAILED), pod("Failed"), id="failed checkpoint"),
    ],
)
async def test_no_other_end_is_recorded(record: Checkpoint, ended: Pod) -> None:
    server = DeletionServer()
    key = server.add(record)
    async with Leader(server, pod("Running"), nodes=(NODE,)) as leader:
        leader.pods._put(ended)
        await leader.settle()
        assert not leader.is_marked(key)
