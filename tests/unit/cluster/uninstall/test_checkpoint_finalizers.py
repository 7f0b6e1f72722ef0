"""After the uninstallation nothing keeps a Checkpoint or its namespace back; its hook may be killed, and run again."""

from __future__ import annotations

import pytest

from cedana_sched.cluster.uninstall.checkpoint_finalizers import remove_finalizers
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.model.objects import names
from cedana_sched.model.records import CheckpointStep
from tests.unit.cluster.coordinator.deletion_server import DeletionServer
from tests.unit.cluster.coordinator.test_object_journal import checkpoint


async def test_finalizers_of_ours_go_and_what_was_deleted_with_them() -> None:
    server = DeletionServer()
    keys = [server.add(checkpoint(number, CheckpointStep.READY)) for number in range(4)]
    server.objects[keys[0]]["metadata"]["finalizers"].append("somebody.else/s")
    await server.delete(CHECKPOINTS, keys[1][2], keys[1][1])
    server.traffic.fails.add(server.traffic.requests + 3)
    with pytest.raises(ExceptionGroup) as refused:
        await remove_finalizers(server)
    assert isinstance(refused.value.exceptions[0], ApiUnavailableError)
    await remove_finalizers(server)
    assert [key in server.objects for key in keys] == [True, False, True, True]
    left = [server.objects[key]["metadata"]["finalizers"] for key in keys if key in server.objects]
    assert left == [["somebody.else/s"], [], []]
    assert len(server.snapshots) == 4, "snapshots stay"
    assert names.SNAPSHOT_CLEANUP not in str(left)
