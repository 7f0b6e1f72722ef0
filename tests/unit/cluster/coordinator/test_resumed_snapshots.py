"""An archived Checkpoint shows that a pod was restored from its snapshot, also once the Restore has expired."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsBySnapshot
from cedana_sched.cluster.coordinator.resumed_snapshots import ResumedSnapshots
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.records import Checkpoint, CheckpointStep, Restore, RestoreStep
from tests.unit.cluster.coordinator.deletion_server import DeletionServer, FieldWriter
from tests.unit.cluster.coordinator.test_object_journal import checkpoint


def ready(generation: int) -> Checkpoint:
    one = checkpoint(1, CheckpointStep.READY)
    return replace(one, uid=f"generation-{generation}", snapshot=SnapshotRef(one.identity, generation))


def resumed_from(of: Checkpoint, generation: int | None) -> Restore:
    return Restore(
        uid=f"restore-of-{generation}",
        adapter="pods",
        workload=replace(of.workload, uid="successor"),
        identity=of.identity,
        policy=of.policy,
        step=RestoreStep.RESTORING,
        created_at=1.0,
        deadline=2.0,
        snapshot=SnapshotRef(of.identity, 1),
        resumed_snapshot=None if generation is None else SnapshotRef(of.identity, generation),
    )


class Marked(FieldWriter):
    """An API server with Checkpoints, and what is marked in it."""

    def __init__(self) -> None:
        server = DeletionServer()
        self.resumed = ResumedSnapshots(server, server.checkpoints, CheckpointsBySnapshot(server.checkpoints))
        super().__init__(server, "resumed", self.resumed.run)


async def test_the_archived_checkpoint_of_that_snapshot_is_marked_and_no_other() -> None:
    marked = Marked()
    other, mine = (marked.server.add(ready(generation)) for generation in (1, 2))
    async with marked:
        marked.resumed.on_records_saved((resumed_from(ready(1), None),), ())
        marked.resumed.on_records_saved((resumed_from(ready(1), 2),), ())
        await marked.wait_marked(mine)
        assert not marked.is_marked(other), "nothing was ordered to resume from it"


async def test_one_that_is_tracked_is_marked_by_its_record_and_when_it_is_archived() -> None:
    marked = Marked()
    tracked = marked.server.add(ready(1), labels={names.NODE: "node-1"})
    async with marked:
        marked.resumed.on_records_saved((resumed_from(ready(1), 1),), ())
        marked.server.objects[tracked]["metadata"]["labels"][names.ARCHIVED] = "true"
        assert not marked.is_marked(tracked)
        marked.server.tell(tracked)
        await marked.wait_marked(tracked)


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_namespace_that_was_made_again_has_other_snapshots(*, forgotten: bool) -> None:
    marked = Marked()
    saved = replace(ready(1), workload=replace(ready(1).workload, namespace_uid="first"))
    foreign, last = marked.server.add(saved), marked.server.add(ready(2))
    async with marked:
        restore = resumed_from(ready(1), 1)
        restore = replace(restore, workload=replace(restore.workload, namespace_uid="second"))
        marked.resumed.on_records_saved((restore,), ())
        if forgotten:
            marked.resumed.on_records_saved((), (restore,))
        marked.resumed.on_records_saved((resumed_from(ready(1), 2),), ())
        await marked.wait_marked(last)
        assert not marked.is_marked(foreign)
