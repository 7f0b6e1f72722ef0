"""Conversion of the coordinator's records to Kubernetes objects and back; spec and status have all of a record.

A round trip changes times by less than a microsecond, and nothing else.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from cedana_sched.cluster.coordinator.conditions import of_checkpoint, of_hold, of_restore
from cedana_sched.coordinator.core.messages import size
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINTS, PREEMPTION_HOLDS, RESTORES, Resource
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import moment, read_kept
from cedana_sched.model.objects.checkpoint import (
    CheckpointSpec,
    CheckpointStatus,
    IdentitySpec,
    PodSpec,
    SnapshotName,
    TransferStatus,
)
from cedana_sched.model.objects.naming import checkpoint_name, hold_name, restore_name
from cedana_sched.model.objects.preemption_hold import (
    HeldObjectSpec,
    PreemptionHoldSpec,
    PreemptionHoldStatus,
    VictimStatus,
)
from cedana_sched.model.objects.restore import RestoreSpec, RestoreStatus
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS
from cedana_sched.model.preemption import HeldObject, WorkloadRef
from cedana_sched.model.records import (
    Checkpoint,
    CheckpointStep,
    PreemptionHold,
    Record,
    Restore,
    bounded,
)

RESOURCES: tuple[Resource, ...] = (CHECKPOINTS, PREEMPTION_HOLDS, RESTORES)


def resource_of(record: Record) -> Resource:
    """Return the kind of a record's object."""
    match record:
        case Checkpoint():
            return CHECKPOINTS
        case PreemptionHold():
            return PREEMPTION_HOLDS
        case Restore():
            return RESTORES


def key_of(record: Record, system_namespace: str) -> tuple[str, str]:
    """Return namespace and name of a record's object."""
    match record:
        case Checkpoint():
            return record.workload.namespace, checkpoint_name(record.identity.id, record.identity.index, record.uid)
        case PreemptionHold():
            return record.namespace or system_namespace, hold_name(record.uid)
        case Restore():
            return record.workload.namespace, restore_name(record.workload.name, record.uid)


def namespace_uid_of(record: Record) -> str:
    """Return the uid of the record's namespace; empty: see `identity.may_be_one_namespace`."""
    return record.namespace_uid if isinstance(record, PreemptionHold) else record.workload.namespace_uid


def to_object(record: Record, system_namespace: str) -> Object:
    """Return metadata, spec and status of a record's object."""
    namespace, name = key_of(record, system_namespace)
    metadata: Object = {"namespace": namespace, "name": name, "labels": labels_of(record)}
    match record:
        case Checkpoint():
            metadata["finalizers"] = [names.SNAPSHOT_CLEANUP]
            spec = _checkpoint_spec(record)
        case PreemptionHold():
            spec = _hold_spec(record)
        case Restore():
            spec = _restore_spec(record)
    return {"metadata": metadata, "spec": spec, "status": status_of(record)}


def status_of(record: Record) -> Object:
    """Return the status of a record's object."""
    match bounded(record):
        case Checkpoint() as checkpoint:
            return _checkpoint_status(checkpoint)
        case PreemptionHold() as hold:
            return _hold_status(hold)
        case Restore() as restore:
            return _restore_status(restore)


def to_record(resource: Resource, body: Object) -> Record:
    """Return the record of an object.

    Raises:
        pydantic.ValidationError: the object is malformed: another writer wrote it.
    """
    namespace = body["metadata"]["namespace"]
    spec, status = body["spec"], body.get("status", {})
    if resource is CHECKPOINTS:
        return _to_checkpoint(namespace, read_kept(CheckpointSpec, spec), status)
    if resource is PREEMPTION_HOLDS:
        hold = read_kept(PreemptionHoldSpec, spec), read_kept(PreemptionHoldStatus, status)
        return _to_hold(namespace, *hold)
    return _to_restore(namespace, read_kept(RestoreSpec, spec), read_kept(RestoreStatus, status))


def labels_of(record: Record) -> dict[str, str]:
    """Return the labels by which agents select their orders."""
    if isinstance(record, PreemptionHold):
        return {}
    identity = record.identity
    return {names.NODE: record.workload.node, names.ID: identity.id, names.INDEX: str(identity.index)}


# -- checkpoints


def _checkpoint_spec(record: Checkpoint) -> Object:
    spec = CheckpointSpec(
        uid=record.uid,
        identity=_identity_spec(record.identity),
        pod_ref=_pod_spec(record.workload),
        namespace_uid=record.workload.namespace_uid or None,
        adapter=record.adapter,
        hold_uid=record.signal_uid,
        reason=record.reason,
        after_commit=record.after_commit,
        gang=record.gang,
        policy=record.policy,
        attempt=record.attempt,
        creation_time=moment(record.created_at),
        workload_start_time=_moment(record.workload_started_at),
    )
    return spec.to_json()


def _checkpoint_status(record: Checkpoint) -> Object:
    status = CheckpointStatus(
        phase=record.phase,
        step=record.step,
        deadline=moment(record.deadline),
        snapshot=_snapshot_name(record.snapshot),
        manifest_digest=record.manifest_digest or None,
        transfer=TransferStatus.of(record.transfer),
        read_size=size(record.transfer.read_bytes) if record.snapshot else None,
        stored_size=size(record.transfer.stored_bytes) if record.snapshot else None,
        freeze_time=_moment(record.frozen_at),
        commit_time=_moment(record.committed_at),
        completion_time=_moment(record.finished_at),
        message=record.failure,
        verdict=record.verdict,
        retry_time=_moment(record.not_before),
        cancelled=record.cancelled,
        workload_gone=record.workload_gone,
        kill_pending=record.kill_pending,
        eviction_cancelled=record.eviction_cancelled,
        unconfirmed=record.unconfirmed,
        cleanup_pending=record.cleanup_pending,
        conditions=of_checkpoint(record),
    )
    return status.to_json()


def _to_checkpoint(namespace: str, spec: CheckpointSpec, shown: Object) -> Checkpoint:
    if spec.first_order is not None and "step" not in shown:  # its node may have frozen the pod by that order already
        deadline = moment(spec.creation_time.timestamp() + spec.policy.deadline_seconds)
        shown = {**shown, "step": CheckpointStep.FREEZING, "deadline": deadline}
    status = read_kept(CheckpointStatus, shown)
    return Checkpoint(
        uid=spec.uid,
        signal_uid=spec.hold_uid,
        adapter=spec.adapter,
        workload=_workload(namespace, spec),
        identity=_identity(namespace, spec.identity),
        policy=spec.policy,
        gang=spec.gang,
        after_commit=spec.after_commit,
        reason=spec.reason,
        step=status.step,
        created_at=spec.creation_time.timestamp(),
        deadline=_bounded(spec.creation_time, status.deadline),
        workload_started_at=_seconds(spec.workload_start_time),
        frozen_at=_seconds(status.freeze_time),
        committed_at=_seconds(status.commit_time),
        finished_at=_seconds(status.completion_time),
        snapshot=_snapshot(namespace, status.snapshot),
        manifest_digest=status.manifest_digest or "",
        transfer=status.transfer.counts,
        failure=status.message,
        verdict=status.verdict,
        attempt=spec.attempt,
        not_before=_seconds(status.retry_time),
        cancelled=status.cancelled,
        workload_gone=status.workload_gone,
        kill_pending=status.kill_pending,
        eviction_cancelled=status.eviction_cancelled,
        unconfirmed=status.unconfirmed,
        cleanup_pending=status.cleanup_pending,
    )


# -- holds


def _hold_spec(record: PreemptionHold) -> Object:
    spec = PreemptionHoldSpec(
        uid=record.uid,
        adapter=record.adapter,
        held_object_ref=_held_spec(record.held),
        preemptor=record.preemptor,
        reason=record.reason,
        release_group=record.release_group,
        namespace_uid=record.namespace_uid or None,
        creation_time=moment(record.created_at),
    )
    return spec.to_json()


def _hold_status(record: PreemptionHold) -> Object:
    status = PreemptionHoldStatus(
        step=record.step,
        deadline=moment(record.deadline),
        checkpoint_uids=record.checkpoints,
        victims=tuple(
            VictimStatus(pod_uid=uid, verdict=verdict, reason=record.reasons.get(uid))
            for uid, verdict in record.verdicts.items()
        ),
        release_time=_moment(record.released_at),
        conditions=of_hold(record),
    )
    return status.to_json()


def _to_hold(namespace: str, spec: PreemptionHoldSpec, status: PreemptionHoldStatus) -> PreemptionHold:
    return PreemptionHold(
        uid=spec.uid,
        adapter=spec.adapter,
        preemptor=spec.preemptor,
        reason=spec.reason,
        step=status.step,
        created_at=spec.creation_time.timestamp(),
        deadline=_bounded(spec.creation_time, status.deadline),
        checkpoints=status.checkpoint_uids,
        release_group=spec.release_group,
        namespace=namespace,
        namespace_uid=spec.namespace_uid or "",
        held=_held(namespace, spec.held_object_ref),
        released_at=_seconds(status.release_time),
        verdicts={victim.pod_uid: victim.verdict for victim in status.victims},
        reasons={victim.pod_uid: victim.reason for victim in status.victims if victim.reason is not None},
    )


# -- restores


def _restore_spec(record: Restore) -> Object:
    spec = RestoreSpec(
        uid=record.uid,
        identity=_identity_spec(record.identity),
        pod_ref=_pod_spec(record.workload),
        namespace_uid=record.workload.namespace_uid or None,
        adapter=record.adapter,
        policy=record.policy,
        requested_snapshot=_snapshot_name(record.requested_snapshot),
        creation_time=moment(record.created_at),
    )
    return spec.to_json()


def _restore_status(record: Restore) -> Object:
    status = RestoreStatus(
        step=record.step,
        deadline=moment(record.deadline),
        snapshot=_snapshot_name(record.snapshot),
        manifest_digest=record.manifest_digest or None,
        newest_snapshot=_snapshot_name(record.newest_snapshot),
        incarnation=record.incarnation,
        cold=record.cold,
        message=record.failure,
        start_time=_moment(record.running_at),
        completion_time=_moment(record.finished_at),
        damaged=tuple(_named(ref) for ref in record.damaged),
        quick_failures=tuple(_named(ref) for ref in record.quick_failures),
        conditions=of_restore(record),
    )
    return status.to_json()


def _to_restore(namespace: str, spec: RestoreSpec, status: RestoreStatus) -> Restore:
    return Restore(
        uid=spec.uid,
        adapter=spec.adapter,
        workload=_workload(namespace, spec),
        identity=_identity(namespace, spec.identity),
        policy=spec.policy,
        step=status.step,
        created_at=spec.creation_time.timestamp(),
        deadline=status.deadline.timestamp(),
        snapshot=_snapshot(namespace, status.snapshot),
        manifest_digest=status.manifest_digest or "",
        requested_snapshot=_snapshot(namespace, spec.requested_snapshot),
        newest_snapshot=_snapshot(namespace, status.newest_snapshot),
        incarnation=status.incarnation,
        cold=status.cold,
        failure=status.message,
        running_at=_seconds(status.start_time),
        finished_at=_seconds(status.completion_time),
        damaged=_refs(namespace, status.damaged),
        quick_failures=_refs(namespace, status.quick_failures),
    )


# -- what they are made of


def _refs(namespace: str, found: tuple[SnapshotName, ...]) -> tuple[SnapshotRef, ...]:
    return tuple(SnapshotRef(_identity(namespace, name), name.generation) for name in found)


def _identity_spec(identity: Identity) -> IdentitySpec:
    return IdentitySpec(id=identity.id, index=identity.index, container=identity.container)


def _identity(namespace: str, spec: IdentitySpec | SnapshotName) -> Identity:
    return Identity(namespace, spec.id, spec.index, spec.container)


def _pod_spec(workload: WorkloadRef) -> PodSpec:
    return PodSpec(name=workload.name, uid=workload.uid, node_name=workload.node)


def _workload(namespace: str, spec: CheckpointSpec | RestoreSpec) -> WorkloadRef:
    pod = spec.pod_ref
    return WorkloadRef(pod.uid, namespace, pod.name, pod.node_name, spec.namespace_uid or "")


def _held_spec(held: HeldObject | None) -> HeldObjectSpec | None:
    if held is None:
        return None
    return HeldObjectSpec(api_version=held.api_version, kind=held.kind, name=held.name, uid=held.uid)


def _held(namespace: str, held: HeldObjectSpec | None) -> HeldObject | None:
    return None if held is None else HeldObject(held.api_version, held.kind, namespace, held.name, held.uid)


def _snapshot_name(ref: SnapshotRef | None) -> SnapshotName | None:
    return None if ref is None else _named(ref)


def _named(ref: SnapshotRef) -> SnapshotName:
    values: dict[str, Any] = {"id": ref.identity.id, "index": ref.identity.index, "container": ref.identity.container}
    return SnapshotName(**values, generation=ref.generation)


def _snapshot(namespace: str, name: SnapshotName | None) -> SnapshotRef | None:
    return None if name is None else SnapshotRef(_identity(namespace, name), name.generation)


def _bounded(created_at: datetime, deadline: datetime) -> float:
    """Cap the deadline: a later one than any of ours is forged."""
    return min(deadline.timestamp(), created_at.timestamp() + LONGEST_RECORD_SECONDS)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
