"""Validation of snapshots found by a node: answers may be stale, and snapshots damaged.

A damaged snapshot is skipped for an older one. An answer older than the newest known commit is treated as stale, and
accepted only when it repeats.
"""

from __future__ import annotations

from cedana_sched.coordinator.core import messages, obstacles
from cedana_sched.coordinator.core.book import Book
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import SnapshotFound
from cedana_sched.model.records import Restore

STALE_ANSWERS = 3
"""Number of answers older than the newest commit after which the older generation is accepted."""
STALE_SECONDS = 1.0
"""Seconds until the lookup is repeated after a stale answer."""
MOST_DAMAGED = 16
"""Limit of damaged snapshots that are skipped for older ones; a node could report damage without end."""


def objection(book: Book, restore: Restore, found: SnapshotFound, trouble: str | None) -> str | None:
    """Return why the restore is refused after this answer; None if it is not, or if there is no snapshot.

    `trouble`: the failure of its last order.
    """
    snapshot = found.snapshot
    if found.problem is not None:
        return found.problem
    if restore.requested_snapshot is not None and snapshot is None:
        return f"the requested {restore.requested_snapshot} is not in the store"
    if restore.passed_over and (snapshot is None or snapshot in restore.passed_over):
        more = f": {trouble}" if trouble else ""
        return f"{messages.passed_over(restore)}, and there is no older one{more}"
    if snapshot is None:
        return obstacles.lost(book, restore)
    if snapshot.identity != (
        restore.identity if restore.requested_snapshot is None else restore.requested_snapshot.identity
    ):
        return f"the node found {snapshot}, which is another identity's"
    if _is_newer_than_damaged(book, restore, snapshot):
        return f"the node found {snapshot}, and was to find one that is older than {min(restore.damaged)}"
    return None


def too_many_damaged(restore: Restore, damaged: SnapshotRef, why: str) -> str | None:
    """Return the refusal once the limit of skipped snapshots is reached; None below it."""
    if len(restore.damaged) < MOST_DAMAGED:
        return None
    return f"{damaged} cannot be read whole, nor can {MOST_DAMAGED} newer ones: {why}"


def is_older_than_committed(book: Book, restore: Restore, snapshot: SnapshotRef) -> bool:
    """Return whether the snapshot is older than a recorded commit, so that the answer is stale."""
    if restore.requested_snapshot is not None:
        return False
    newest = max((ref.generation for ref in obstacles.committed(book, restore)), default=0)
    return snapshot.generation < newest


def manifest_of(book: Book, restore: Restore, snapshot: SnapshotRef) -> str:
    """Return the digest of the snapshot's manifest; empty if no checkpoint has it."""
    known = book.of_identity(snapshot.identity, restore.workload)
    made = (one for one in known if one.snapshot == snapshot)
    return next((one.manifest_digest for one in made if one.manifest_digest), "")


def _is_newer_than_damaged(book: Book, restore: Restore, snapshot: SnapshotRef) -> bool:
    """Return whether an older snapshot was required, and this newer one is in no record."""
    is_newer = bool(restore.damaged) and snapshot > min(restore.damaged)
    return is_newer and snapshot not in obstacles.committed(book, restore)
