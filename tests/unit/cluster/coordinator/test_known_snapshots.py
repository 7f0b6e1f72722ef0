"""What the coordinator finds among the Checkpoints of an id."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.model.identity import Identity
from tests.unit.cluster.coordinator.filled_mirrors import filled

NOON = "2026-05-01T12:00:00.250000Z"
AFTER = datetime.fromisoformat(NOON).timestamp() + 1


def committed(at: str | None, *, pod: str = "u1", snapshot: bool = True) -> KnownCheckpoint:
    status: dict[str, Any] = {"step": "Ready", "commitTime": at}
    if snapshot:
        status["snapshot"] = {"generation": 5, "id": "md", "index": 3}
    spec = {"identity": {"id": "md", "index": 3}, "podRef": {"nodeName": "a", "uid": pod}}
    metadata = {"name": "md", "namespace": "bio", "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KnownCheckpoint)


@pytest.mark.parametrize(
    ("one", "is_so"),
    [
        (committed(NOON), True),
        (committed("2026-05-01T12:00:02Z"), False),
        (committed(NOON, pod="u2"), False),
        (committed(NOON, snapshot=False), False),
        (committed(None), False),
        (committed("yesterday"), False),
    ],
    ids=["saved before", "saved since", "another pod's", "not saved", "no time", "no such time"],
)
def test_a_pod_was_saved_before_a_moment(one: KnownCheckpoint, *, is_so: bool) -> None:
    assert CheckpointsById(filled(one)).has_pod_snapshot_before("u1", Identity("bio", "md", 3), AFTER) is is_so
