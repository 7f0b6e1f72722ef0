"""Validation of agents' answers: an answer is accepted only for the order that it answers.

An agent is root on its own node only. It may report the outcome for the pod and identity of its order; claims about
another record, namespace or snapshot are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from cedana_sched.coordinator.core import record_uid_of
from cedana_sched.model.identity import LARGEST_GENERATION, SnapshotRef
from cedana_sched.model.objects.base import LARGEST_NUMBER
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    ApplyRetention,
    CheckpointFailed,
    Committed,
    DiscardCancelled,
    Dump,
    FailWorkload,
    FindSnapshot,
    Freeze,
    Frozen,
    Kill,
    Killed,
    Order,
    Outcome,
    RemovalFailed,
    RemoveSnapshot,
    RestoreFailed,
    RestoreOutcome,
    RestoreSnapshot,
    RestoreSucceeded,
    RetentionApplied,
    SnapshotFound,
    SnapshotRemoved,
    Stage,
    Staged,
    StageFailed,
    StartCold,
    StartedCold,
    Thaw,
    Thawed,
    WorkloadFailed,
)
from cedana_sched.model.path_segment_validation import is_manifest_digest
from cedana_sched.model.records import Transfer
from cedana_sched.model.texts import truncate_text

S = TypeVar("S", bound=msgspec.Struct)
_MOST_NOTES = 10
_LONGEST_NOTE = 400
"""Notes on changed files: as many as an agent writes, with paths of the length that it permits."""

_ANSWERS: dict[type, tuple[type, ...]] = {
    Freeze: (Frozen, CheckpointFailed),
    Dump: (Committed, CheckpointFailed),
    Kill: (Killed, CheckpointFailed),
    Thaw: (Thawed, CheckpointFailed),
    Abort: (Aborted, CheckpointFailed),
    ApplyRetention: (RetentionApplied, CheckpointFailed),
    RemoveSnapshot: (SnapshotRemoved, RemovalFailed),
    DiscardCancelled: (SnapshotRemoved, RemovalFailed),
    FindSnapshot: (SnapshotFound, StageFailed),
    Stage: (Staged, StageFailed),
    RestoreSnapshot: (RestoreSucceeded, RestoreFailed),
    StartCold: (StartedCold, RestoreSucceeded, RestoreFailed),
    FailWorkload: (WorkloadFailed, RestoreSucceeded, RestoreFailed),
}
"""Outcomes documented at the orders, and those by which a node refuses one."""


def first_objection_to(outcome: Outcome, order: Order) -> str | None:
    """Return why this is no answer to the order; None if it is one."""
    return next(_find_objections(outcome, order), None)


def _find_objections(outcome: Outcome, order: Order) -> Iterator[str]:
    given, answered = type(order).__name__, type(outcome).__name__
    if not isinstance(outcome, _ANSWERS[type(order)]):
        yield f"{answered} is no answer to {given}"
    uid = outcome.restore_uid if isinstance(outcome, RestoreOutcome) else outcome.checkpoint_uid
    if uid != record_uid_of(order):
        yield f"it answers for {uid!r:.100}"
    match order, outcome:
        case Dump(), Committed():
            named = [outcome.snapshot, *([outcome.leaves] if outcome.leaves is not None else [])]
            yield from _snapshot_objections(named, order.identity.namespace, lambda ref: ref.identity == order.identity)
            if not is_possible_transfer(outcome.transfer):
                yield "its number of bytes is out of range"
            if outcome.manifest_digest and not is_manifest_digest(outcome.manifest_digest):
                yield f"{outcome.manifest_digest!r:.100} is no digest of a manifest"
        case FindSnapshot(), SnapshotFound(snapshot=SnapshotRef() as found):
            wanted, identity = order.requested_snapshot, order.identity
            yield from _snapshot_objections([found], identity.namespace, lambda ref: ref == (wanted or ref))
            if wanted is None and (found.identity != identity or found.generation in order.avoiding):
                yield f"{found} is none that was looked for"
        case ApplyRetention(), RetentionApplied():
            yield from _snapshot_objections(
                outcome.removed, order.identity.namespace, lambda ref: ref.identity == order.identity
            )
            if any(ref.generation in order.spare for ref in outcome.removed):
                yield "it has removed what is in use"


def _snapshot_objections(
    refs: Sequence[SnapshotRef], namespace: str, is_meant: Callable[[SnapshotRef], bool]
) -> Iterator[str]:
    for ref in refs:
        if ref.identity.namespace != namespace:
            yield f"{ref} is of another namespace"
        if not is_meant(ref):
            yield f"{ref} is another one than was ordered"
        if not 1 <= ref.generation <= LARGEST_GENERATION:
            yield f"{ref} cannot be"


def is_possible_transfer(transfer: Transfer) -> bool:
    """Whether these are possible byte counts."""
    return all(0 <= amount <= LARGEST_NUMBER for amount in msgspec.structs.astuple(transfer))


def truncate_outcome_texts(outcome: S) -> S:
    """Truncate each text to what a record keeps: an agent may send any length, and records persist."""
    texts = ((name, getattr(outcome, name)) for name in outcome.__struct_fields__)
    short = msgspec.structs.replace(
        outcome, **{name: truncate_text(text) for name, text in texts if isinstance(text, str)}
    )
    if isinstance(short, RestoreSucceeded) and short.changed_files:
        notes = tuple(truncate_text(note, _LONGEST_NOTE) for note in short.changed_files[:_MOST_NOTES])
        return msgspec.structs.replace(short, changed_files=notes)
    return short


def failure_outcome_for(order: Order, text: str) -> Outcome | None:
    """Return the outcome that replaces a rejected answer; None if the order is repeated instead."""
    match order:
        case Freeze() | Dump():
            return CheckpointFailed(record_uid_of(order), text)
        case FindSnapshot():
            return SnapshotFound(record_uid_of(order), problem=text)
        case Stage():
            return StageFailed(record_uid_of(order), text)
        case RestoreSnapshot():
            return RestoreFailed(record_uid_of(order), text)
        case _:
            return None


def outcome_if_undeliverable(order: Order, why: str) -> Outcome | None:
    """Return the outcome for an order that no agent can read; None if only its pod's end decides.

    Args:
        order: not stored anywhere: its record never had an object, or the pod is gone with its namespace.
        why: reason, as a clause.
    """
    if isinstance(order, Abort):
        return Aborted(record_uid_of(order))
    if isinstance(order, DiscardCancelled):
        return SnapshotRemoved(record_uid_of(order))
    return failure_outcome_for(order, f"the order cannot reach its node: {why}")
