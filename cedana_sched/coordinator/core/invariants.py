"""The design's invariants, as far as the records alone show them; tests evaluate them after every step.

The tests' simulation checks what the records do not show (a frozen process executes no instruction, the store holds
every restored snapshot). Numbers are those of the design's list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cedana_sched.coordinator.core.checkpoint_starts import is_active
from cedana_sched.coordinator.core.machine import Core
from cedana_sched.coordinator.core.record_registry import claimed_snapshot
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import Kill, Order
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import Checkpoint, CheckpointStep, HoldStep, Restore, RestoreStep

_IRREVERSIBLE = frozenset({CheckpointStep.KILLING, CheckpointStep.THAWING, CheckpointStep.ABORTING})
_PAST_COMMIT = frozenset({CheckpointStep.COMMITTED, CheckpointStep.KILLING, CheckpointStep.THAWING})
_ENDING = frozenset({RestoreStep.STARTING_COLD, RestoreStep.FAILING_WORKLOAD})
_OPEN_ENDED = frozenset({RestoreStep.RUNNING, RestoreStep.FAILED, RestoreStep.ENDED})


def violations(core: Core) -> list[str]:
    """Return every invariant that the records violate, as `number: sentence`; empty if all hold."""
    parts = (
        _claim_violations,
        _cold_start_violations,
        _hold_violations,
        _checkpoint_violations,
        _identity_violations,
        _phase_violations,
        _precedence_violations,
        _hold_counter_violations,
    )
    return [sentence for part in parts for sentence in part(core)]


def forbidden_order(core: Core, order: Order) -> str | None:
    """4: no final kill is ordered while an active hold names the workload."""
    if not isinstance(order, Kill) or not order.insist:
        return None
    named = {one.signal_uid for one in core.registry.checkpoints_of_workload(order.workload.uid)}
    for hold in core.registry.holds.values():
        if hold.uid in named and hold.step is not HoldStep.RELEASED:
            return f"4: {order.workload.uid} is ended while {hold.uid} is {hold.step}"
    return None


def _claim_violations(core: Core) -> Iterator[str]:
    """1, 3, 7, 8: one claim per snapshot, of the same namespace and replica, of no cancelled checkpoint."""
    restores = core.registry.restores.values()
    claimed = Counter(
        (ref, restore.workload.namespace_uid) for restore in restores if (ref := claimed_snapshot(restore)) is not None
    )
    for (ref, _), count in claimed.items():
        if count > 1:
            yield f"1: {ref} is claimed {count} times"
    cancelled = {
        (c.snapshot, c.workload.namespace_uid)
        for c in core.registry.checkpoints.values()
        if c.cancelled and c.snapshot is not None
    }
    for restore in restores:
        ref = claimed_snapshot(restore)
        if restore.step is RestoreStep.FAILED and restore.snapshot is not None and ref is None:
            yield f"1: {restore.uid} may have been continued from {restore.snapshot}, and claims it no more"
        if ref is None:
            continue
        if (ref, restore.workload.namespace_uid) in cancelled:
            yield f"3: {restore.uid} claims {ref}, whose checkpoint was cancelled"
        if ref.identity.namespace != restore.identity.namespace:
            yield f"7: {restore.uid} of {restore.identity} claims {ref}"
        if ref.identity.index != restore.identity.index:
            yield f"8: {restore.uid} of {restore.identity} claims {ref}"


def _cold_start_violations(core: Core) -> Iterator[str]:
    """2: a cold start despite a known snapshot has a reason."""
    for restore in core.registry.restores.values():
        if not restore.cold or restore.failure is not None:
            continue
        for checkpoint in core.registry.checkpoints_of_identity(restore.identity, restore.workload):
            ready_at = checkpoint.finished_at if checkpoint.step is CheckpointStep.READY else None
            if ready_at is not None and ready_at < restore.created_at:
                yield f"2: {restore.uid} started cold without a word, {checkpoint.snapshot} was there"


def _hold_violations(core: Core) -> Iterator[str]:
    """4: a hold ends by its deadline, with a verdict for each victim."""
    for hold in core.registry.holds.values():
        if hold.step is HoldStep.HOLDING:
            if core.now > hold.deadline:
                yield f"4: {hold.uid} holds {core.now - hold.deadline:.1f} s past its deadline"
            continue
        for checkpoint in core.registry.checkpoints_of_hold(hold):
            verdict = hold.verdicts.get(checkpoint.workload.uid)
            if verdict is None:
                yield f"4: {hold.uid} is released without a verdict for {checkpoint.workload.uid}"
            killed = (
                checkpoint.step in {CheckpointStep.KILLING, CheckpointStep.READY} and checkpoint.is_stopped_after_commit
            )
            if killed and verdict is not Verdict.COMMITTED:
                yield f"4: {hold.uid} says {verdict} of {checkpoint.uid}, which is {checkpoint.step}"


def _checkpoint_violations(core: Core) -> Iterator[str]:
    """5, 6: no member is killed before its whole set is committed; no workload is frozen twice at a time."""
    busy: Counter[str] = Counter()
    for checkpoint in core.registry.checkpoints.values():
        step = checkpoint.step
        if is_active(checkpoint):
            busy[checkpoint.workload.uid] += 1
        if (step in _PAST_COMMIT or step is CheckpointStep.READY) and checkpoint.snapshot is None:
            yield f"5: {checkpoint.uid} is {step} without a snapshot"
        if step is CheckpointStep.KILLING and not checkpoint.is_stopped_after_commit:
            yield f"5: {checkpoint.uid} is killed although it was to run on"
        if step is CheckpointStep.KILLING and checkpoint.gang is not None:
            yield from _gang_violations(core, checkpoint)
        if step is CheckpointStep.FAILED and checkpoint.verdict is Verdict.COMMITTED:
            yield f"6: {checkpoint.uid} failed, and is reported to its scheduler as committed"
    for workload_uid, count in busy.items():
        if count > 1:
            yield f"5: {workload_uid} is frozen by {count} checkpoints at a time"


def _identity_violations(core: Core) -> Iterator[str]:
    """8: no two workloads are saved under one identity at a time, nor for one preemption."""
    saved: dict[tuple[Identity, str], Checkpoint] = {}
    release_group: dict[tuple[str, Identity], str] = {}
    for checkpoint in core.registry.checkpoints.values():
        identity, workload = checkpoint.identity, checkpoint.workload
        if checkpoint.step is not CheckpointStep.WAITING and not checkpoint.is_terminal and not checkpoint.cancelled:
            other = saved.setdefault((identity, workload.namespace_uid), checkpoint)
            if other.workload.uid != workload.uid:
                yield f"8: {other.uid} and {checkpoint.uid} both save {identity}"
        if checkpoint.snapshot is not None and not checkpoint.cancelled:
            first = release_group.setdefault((checkpoint.signal_uid, identity), workload.uid)
            if first != workload.uid:
                yield f"8: {checkpoint.signal_uid} has saved {identity} from {first} and from {workload.uid}"


def _gang_violations(core: Core, checkpoint: Checkpoint) -> Iterator[str]:
    for member in core.registry.members_of_set(checkpoint):
        if member.snapshot is None or member.cancelled:
            yield f"5: {checkpoint.uid} is killed while {member.uid} of its gang is {member.step}"


def _phase_violations(core: Core) -> Iterator[str]:
    """9: no record stays in an intermediate phase past its deadline."""
    confirm = core.timing.confirm
    for checkpoint in core.registry.checkpoints.values():
        if not checkpoint.is_terminal:
            grace = confirm if checkpoint.step in _IRREVERSIBLE else 0.0
            yield from _deadline_violations(core, checkpoint, grace)
    for restore in core.registry.restores.values():
        if restore.step not in _OPEN_ENDED:
            yield from _deadline_violations(core, restore, confirm if restore.step in _ENDING else 0.0)


def _precedence_violations(core: Core) -> Iterator[str]:
    """4: no periodic checkpoint takes a node's time while the node saves a workload that is to be evicted."""
    saving = {
        checkpoint.workload.node: checkpoint.uid
        for checkpoint in core.registry.checkpoints.values()
        if checkpoint.is_stopped_after_commit and not checkpoint.is_terminal
    }
    for checkpoint in core.registry.checkpoints.values():
        is_in_progress = not checkpoint.is_terminal and checkpoint.step not in _IRREVERSIBLE
        if checkpoint.is_periodic and is_in_progress and (other := saving.get(checkpoint.workload.node)) is not None:
            yield f"4: {checkpoint.uid} is {checkpoint.step} beside {other}"


def _hold_counter_violations(core: Core) -> Iterator[str]:
    """4: the hold counters, by which holds are released, match the records."""
    registry = core.registry
    for hold in registry.holds.values():
        if hold.step is not HoldStep.HOLDING:
            continue
        companions = [
            one
            for one in registry.holds.values()
            if one.step is HoldStep.HOLDING
            and (one is hold or (one.release_group is not None and one.release_group == hold.release_group))
            and one.adapter == hold.adapter
        ]
        if {one.uid for one in registry.holds_released_with(hold)} != {one.uid for one in companions}:
            yield f"4: {hold.uid} has other companions than {[one.uid for one in companions]}"
        named = (registry.checkpoints.get(uid) for one in companions for uid in one.checkpoints)
        if registry.are_terminal(hold) != all(one is None or one.is_terminal for one in named):
            yield f"4: whether {hold.uid} waits is counted wrong"


def _deadline_violations(core: Core, record: Checkpoint | Restore, grace: float) -> Iterator[str]:
    late = core.now - record.deadline - grace
    if late > 0:
        yield f"9: {record.uid} is {record.step} {late:.1f} s past its deadline"
