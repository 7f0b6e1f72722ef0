"""What counts of a node's Checkpoints: a few of each namespace, and the last two of each pod."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from cedana_sched.kube.own_kinds.measured_checkpoint import MeasuredCheckpoint
from cedana_sched.model.objects.base import utc_datetime_of
from cedana_sched_kubernetes.save_measurements import MEASURABLE_BYTES, MOST_OF_NAMESPACE, SaveMeasurements
from cedana_sched_kubernetes.save_rates import MeasuredSave

NOW = 1_800_000_000.0
GIB = 1 << 30


def time(ago: float) -> str:
    return utc_datetime_of(NOW - ago).isoformat()


def checkpoint(
    *,
    ago: float,
    moved: int = GIB,
    seconds: float | None = 10,
    uid: str = "pod-1",
    namespace: str = "bio",
    **status: Any,
) -> MeasuredCheckpoint:
    identity = {"id": "md", "index": 0, "container": "main"}
    if seconds is not None:
        status["freezeTime"] = time(ago + seconds)
    body = {
        "metadata": {"name": "c", "namespace": namespace},
        "spec": {"identity": identity, "podRef": {"uid": uid, "name": "md-0", "nodeName": "n"}},
        "status": {
            "phase": "Ready",
            "step": "Ready",
            "commitTime": time(ago),
            "snapshot": {**identity, "generation": 1},
            "transfer": {"readBytes": moved + 3 * GIB, "zeroBytes": 2 * GIB, "reusedBytes": GIB},
            **status,
        },
    }
    return msgspec.convert(body, MeasuredCheckpoint)


def measured(*checkpoints: MeasuredCheckpoint, most_namespaces: int = 3) -> SaveMeasurements:
    measurements = SaveMeasurements({"pod-1", "pod-2"}, most_namespaces)
    for one in checkpoints:
        measurements.add(one)
    return measurements


def test_a_save_lasts_from_the_freeze_to_the_commit() -> None:
    assert measured(checkpoint(ago=5)).saves == {"bio": [MeasuredSave(NOW - 15, NOW - 5, GIB)]}


@pytest.mark.parametrize(
    "one",
    [
        checkpoint(ago=5, moved=MEASURABLE_BYTES - 1),
        checkpoint(ago=5, seconds=None),
        checkpoint(ago=5, seconds=0),
        checkpoint(ago=5, commitTime=None, phase="Failed", step="Failed"),
    ],
    ids=["too small", "not frozen", "at one instant", "not committed"],
)
def test_what_cannot_be_measured_does_not_count(one: MeasuredCheckpoint) -> None:
    assert measured(one).saves == {}


def test_the_newest_of_each_namespace_count() -> None:
    many = [checkpoint(ago=20 * number, namespace=name) for name in ("bio", "lab") for number in range(50)]
    random.Random(7).shuffle(many)
    saves = measured(*many).saves
    assert {name: len(ones) for name, ones in saves.items()} == {"bio": MOST_OF_NAMESPACE, "lab": MOST_OF_NAMESPACE}
    assert [NOW - one.committed_at for one in saves["bio"]] == [20.0 * number for number in reversed(range(10))]


def test_namespaces_that_were_saved_last_count() -> None:
    by_age = [checkpoint(ago=number, namespace=f"n{number}") for number in range(5)]
    for order in itertools.permutations(by_age):
        assert measured(*order).saves.keys() == {"n0", "n1", "n2"}


def test_the_last_two_snapshots_of_a_pod_are_kept() -> None:
    deleted = MeasuredCheckpoint(
        metadata=msgspec.structs.replace(checkpoint(ago=1).metadata, deletion_timestamp=time(0)),
        spec=checkpoint(ago=1).spec,
        status=checkpoint(ago=1).status,
    )
    failed = checkpoint(ago=2, phase="Failed", step="Failed")
    several = [checkpoint(ago=ago) for ago in (30, 10, 20)]
    found = measured(deleted, failed, *several, checkpoint(ago=3, uid="pod-2"), checkpoint(ago=4, uid="elsewhere"))
    assert found.snapshots_of("pod-1") == [several[2], several[1]]
    assert [len(found.snapshots_of(uid)) for uid in ("pod-2", "elsewhere")] == [1, 0]
