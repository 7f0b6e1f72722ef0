"""Views of what was read. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from cedana_sched.adapter.protected_pods import find_identity
from cedana_sched.cli.kubectl.views import EventView, HoldView, OperationView, PodView, PolicyView
from cedana_sched.kube.builtin_kinds import Pod, read_time
from cedana_sched.kube.own_kinds.parts import SnapshotName
from cedana_sched.kube.own_kinds.shown_records import CheckpointRead, EventRead, HoldRead, PolicyRead, RestoreRead
from cedana_sched.model.records import CheckpointStep
from cedana_sched.model.texts import printable_text

Key = tuple[str, str, int]
"""Namespace, id and index."""


class SnapshotsByIdentity:
    """The committed snapshots of Checkpoints, by identity."""

    def __init__(self, checkpoints: Iterable[CheckpointRead]) -> None:
        found: defaultdict[Key, list[CheckpointRead]] = defaultdict(list)
        for one in checkpoints:
            if one.status.step is CheckpointStep.READY and one.status.snapshot is not None:
                found[key_of(one)].append(one)
        self._found: Mapping[Key, list[CheckpointRead]] = found

    def all_of(self, key: Key) -> list[CheckpointRead]:
        """Return those of an identity, oldest first."""
        return sorted(self._found.get(key, ()), key=_generation_of)

    def newest_of(self, key: Key) -> CheckpointRead | None:
        """Return the newest one."""
        return max(self._found.get(key, ()), key=_generation_of, default=None)

    def bytes_of(self, namespace: str, snapshot: SnapshotName | None) -> int | None:
        """Return the bytes of a snapshot without its empty pages; None if no Checkpoint has it."""
        if snapshot is None:
            return None
        of_identity = self._found.get((namespace, snapshot.id, snapshot.index), ())
        found = (one for one in of_identity if _generation_of(one) == snapshot.generation)
        return next((one.status.transfer.read_bytes - one.status.transfer.zero_bytes for one in found), None)


def key_of(one: CheckpointRead | RestoreRead) -> Key:
    """Return the identity of a record."""
    return one.metadata.namespace, one.spec.identity.id, one.spec.identity.index


def view_pod(pod: Pod, snapshots: SnapshotsByIdentity) -> PodView | None:
    """Return the view of a pod; None if it has no identity."""
    identity, metadata = find_identity(pod), pod.metadata
    if identity is None:
        return None
    known = snapshots.all_of((metadata.namespace, identity.id, identity.index))
    newest, condition = (known[-1] if known else None), pod.checkpointable
    is_savable = {"True": True, "False": False}.get(condition.status) if condition is not None else None
    return PodView(
        namespace=metadata.namespace,
        name=metadata.name,
        id=identity.id,
        index=identity.index,
        node=pod.spec.node_name,
        phase=pod.status.phase,
        checkpointable=is_savable,
        obstacle=printable_text(condition.message) if condition is not None and is_savable is False else None,
        started_at=pod.status.started_at,
        snapshots=len(known),
        snapshot=_format_snapshot(newest.status.snapshot) if newest is not None else None,
        saved_at=newest.committed_at if newest is not None else None,
        read_bytes=newest.status.transfer.read_bytes if newest is not None else 0,
    )


def view_checkpoint(one: CheckpointRead, snapshots: SnapshotsByIdentity) -> OperationView:
    """Return the view of a Checkpoint."""
    before, transfer = snapshots.newest_of(key_of(one)), one.status.transfer
    return OperationView(
        kind="Checkpoint",
        namespace=one.metadata.namespace,
        name=one.metadata.name,
        id=one.spec.identity.id,
        index=one.spec.identity.index,
        pod=one.spec.pod_ref.name,
        node=one.spec.pod_ref.node_name,
        snapshot=_format_snapshot(one.status.snapshot),
        step=str(one.status.step),
        done_bytes=transfer.read_bytes,
        total_bytes=before.status.transfer.read_bytes if before is not None and one.is_in_flight else None,
        stored_bytes=transfer.stored_bytes,
        began_at=read_time(one.metadata.creation_timestamp),
        frozen_at=read_time(one.status.freeze_time),
        committed_at=one.committed_at,
        deadline=read_time(one.status.deadline),
        adapter=one.spec.adapter,
        reason=printable_text(one.spec.reason),
        message=_printable(one.status.message),
    )


def view_restore(one: RestoreRead, snapshots: SnapshotsByIdentity) -> OperationView:
    """Return the view of a Restore."""
    return OperationView(
        kind="Restore",
        namespace=one.metadata.namespace,
        name=one.metadata.name,
        id=one.spec.identity.id,
        index=one.spec.identity.index,
        pod=one.spec.pod_ref.name,
        node=one.spec.pod_ref.node_name,
        snapshot=_format_snapshot(one.status.snapshot),
        step=str(one.status.step),
        done_bytes=one.status.transfer.read_bytes if one.status.transfer is not None else 0,
        total_bytes=snapshots.bytes_of(one.metadata.namespace, one.status.snapshot),
        began_at=read_time(one.metadata.creation_timestamp),
        deadline=read_time(one.status.deadline),
        adapter=one.spec.adapter,
        reason="cold" if one.status.cold else "",
        message=_printable(one.status.message),
    )


def view_hold(one: HoldRead) -> HoldView:
    """Return the view of a PreemptionHold."""
    held = one.spec.held_object_ref
    return HoldView(
        namespace=one.metadata.namespace,
        name=one.metadata.name,
        held=f"{held.kind}/{held.name}" if held is not None else "",
        adapter=one.spec.adapter,
        step=str(one.status.step),
        reason=printable_text(one.spec.reason),
        preemptor=_printable(one.spec.preemptor),
        began_at=read_time(one.metadata.creation_timestamp),
        deadline=read_time(one.status.deadline),
        released_at=read_time(one.status.release_time),
        verdicts=dict(Counter(victim.verdict for victim in one.status.victims)),
    )


def view_hold_as_operation(one: HoldRead) -> OperationView:
    """Return the view of a PreemptionHold among checkpoints and restores."""
    hold = view_hold(one)
    return OperationView(
        kind="PreemptionHold",
        namespace=hold.namespace,
        name=hold.name,
        pod=hold.held,
        step=hold.step,
        began_at=hold.began_at,
        deadline=hold.deadline,
        adapter=hold.adapter,
        reason=hold.reason,
    )


def view_event(one: EventRead) -> EventView:
    """Return the view of an Event."""
    return EventView(
        at=one.last_seen_at,
        warning=one.type == "Warning",
        reason=printable_text(one.reason or ""),
        text=printable_text(" ".join((one.message or "").split())),
        count=one.times_seen,
    )


def view_policy(one: PolicyRead) -> PolicyView:
    """Return the view of a CheckpointPolicy."""
    return PolicyView(name=one.metadata.name, spec=one.spec)


def _format_snapshot(snapshot: SnapshotName | None) -> str | None:
    return None if snapshot is None else f"{snapshot.id}/{snapshot.index}@{snapshot.generation}"


def _generation_of(one: CheckpointRead) -> int:
    return one.status.snapshot.generation if one.status.snapshot is not None else 0


def _printable(text: str | None) -> str | None:
    return None if text is None else printable_text(text)
