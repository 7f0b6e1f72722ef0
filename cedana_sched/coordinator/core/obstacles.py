"""What keeps a restore from its snapshot: questions to the book, nothing is changed here."""

from __future__ import annotations

from cedana_sched.coordinator.core.book import Book, claims, holds_identity
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.records import Checkpoint, Restore, RestoreStep


def in_flight(book: Book, restore: Restore) -> list[Checkpoint]:
    """Checkpoints of other workloads that may still give this restore its snapshot."""
    identity = restore.wanted.identity if restore.wanted else restore.identity
    return [
        checkpoint
        for checkpoint in book.of_identity(identity)
        if not checkpoint.settled and checkpoint.workload.uid != restore.workload.uid
    ]


def blocked_by(book: Book, restore: Restore, wanted: SnapshotRef | None) -> str | None:
    """What is in the way of a waiting restore, in words; None when nothing is.

    `wanted`: the snapshot that it is known to need, because a person asked for it or the store named it.
    """
    if flying := in_flight(book, restore):
        return f"a checkpoint of {flying[0].identity} is in flight"
    is_earlier = True  # of two that wait, the later one waits for the earlier one
    for other in book.restores_of(restore.identity):
        if other.uid == restore.uid:
            is_earlier = False
        elif holds_identity(other) and (is_earlier or other.step is not RestoreStep.WAITING):
            return f"{other.workload.name} still runs as {restore.identity}"
    if wanted is not None and claimed_by_other(book, restore, wanted):
        return f"{wanted} is claimed by another workload"
    return None


def claimed_by_other(book: Book, restore: Restore, snapshot: SnapshotRef) -> bool:
    """Whether another restore may run from this snapshot."""
    return any(
        claims(other) == snapshot for other in book.restores_naming(snapshot.identity) if other.uid != restore.uid
    )


def forbidden(restore: Restore) -> str | None:
    """Why the very snapshot that was asked for can never be given to this workload."""
    wanted = restore.wanted
    if wanted is None:
        return None
    if wanted.identity.namespace != restore.identity.namespace:
        return f"{wanted} belongs to another namespace"
    if wanted.identity.index != restore.identity.index:
        return f"{wanted} belongs to replica {wanted.identity.index}, this is replica {restore.identity.index}"
    return None
