"""Pods that nothing tells apart continue each snapshot of their id once, and none that a sibling has finished."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec.structs import replace

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.sibling_snapshot_choice import SiblingSnapshotChoice, is_snapshot_choice_pending
from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, Pod, PodStatus
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.records import CheckpointStep
from tests.unit.cluster.coordinator.filled_mirrors import filled


def offered(
    index: int, step: CheckpointStep = CheckpointStep.READY, generation: int = 1, node: str = "a"
) -> KnownCheckpoint:
    name = f"md-{index}-{generation}"
    spec: Any = {"identity": {"id": "md", "index": index}, "podRef": {"nodeName": node}}
    status: Any = {"step": step, "snapshot": {"generation": generation, "id": "md", "index": index}}
    metadata: Any = {"name": name, "namespace": "bio", "resourceVersion": name}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KnownCheckpoint)


def sibling(
    uid: str, index: int, *, chosen: bool = False, phase: str = "Running", job: str = "job", deleted: bool = False
) -> Pod:
    restores = f"md/{index}" if chosen else names.any_snapshot_restore_identity("md")
    metadata = Metadata(
        name=uid,
        namespace="bio",
        uid=uid,
        annotations={names.ID: "md", names.INDEX: str(index), names.RESTORE_IDENTITY: restores},
        owner_references=(OwnerReference("batch/v1", "Job", "md", job, controller=True),),
        deletion_timestamp="2026-05-01T12:00:00Z" if deleted else None,
    )
    return Pod(metadata, status=PodStatus(phase=phase))


def choice(checkpoints: Informer[KnownCheckpoint], *pods: Pod) -> SiblingSnapshotChoice:
    return SiblingSnapshotChoice(cast("Informer[Pod]", filled(*pods)), CheckpointsById(checkpoints))


def index_of(one: KnownCheckpoint | None) -> int | None:
    return None if one is None else one.identity.index


def test_each_snapshot_is_chosen_once_and_committed_ones_first() -> None:
    snapshots = filled(offered(7, CheckpointStep.DUMPING), offered(9), offered(8, CheckpointStep.FAILED))
    chooser = choice(snapshots)
    assert [
        index_of(chooser.choose_checkpoint_for(sibling(uid, 100 + number))) for number, uid in enumerate("abc")
    ] == [9, 7, None]
    assert index_of(chooser.choose_checkpoint_for(sibling("a", 100))) == 9, "the same answer again"


def test_what_is_deleted_is_not_chosen() -> None:
    going = offered(9)
    deleted = replace(going, metadata=replace(going.metadata, deletion_timestamp="2026-05-01T12:00:00Z"))
    chooser = choice(filled(deleted, offered(7)))
    assert [index_of(chooser.choose_checkpoint_for(sibling(uid, 100))) for uid in "ab"] == [7, None]


def test_what_running_and_finished_siblings_have_is_not_chosen() -> None:
    snapshots = filled(*(offered(index) for index in range(1, 6)))
    siblings = (
        sibling("runs", 1, chosen=True),
        sibling("done", 2, chosen=True, phase="Succeeded"),
        sibling("failed", 3, chosen=True, phase="Failed"),
        sibling("goes", 4, chosen=True, deleted=True),
        sibling("done-in-another-job", 5, chosen=True, phase="Succeeded", job="earlier"),
    )
    chooser = choice(snapshots, *siblings)
    assert [index_of(chooser.choose_checkpoint_for(sibling(f"new-{number}", 100 + number))) for number in range(4)] == [
        3,
        4,
        5,
        None,
    ]


def test_choice_of_a_pod_that_went_before_it_was_seen_is_free_again() -> None:
    pods: Informer[Any] = filled(sibling("first", 100))
    chooser = SiblingSnapshotChoice(pods, CheckpointsById(filled(offered(7))))
    (first,) = pods
    assert index_of(chooser.choose_checkpoint_for(first)) == 7
    assert chooser.choose_checkpoint_for(sibling("second", 101)) is None
    pods._replace(())
    assert index_of(chooser.choose_checkpoint_for(sibling("second", 101))) == 7


def test_newest_generation_says_where_it_was_taken() -> None:
    chosen = choice(
        filled(offered(7, generation=1, node="a"), offered(7, generation=2, node="b"))
    ).choose_checkpoint_for(sibling("a", 1))
    assert chosen is not None
    assert chosen.node == "b"


def test_pod_with_a_number_of_its_own_is_not_to_choose() -> None:
    assert is_snapshot_choice_pending(sibling("a", 100))
    assert not is_snapshot_choice_pending(sibling("a", 100, chosen=True))
