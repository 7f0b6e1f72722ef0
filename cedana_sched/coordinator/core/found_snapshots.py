"""Whether a snapshot that a node has found is to be continued: answers may be late, and snapshots damaged.

What cannot be read whole is passed over for an older one. An answer that names an older snapshot than is known to be
committed was on its way for long, and counts when it comes again and again.
"""

from __future__ import annotations

from cedana_sched.coordinator.core import messages, obstacles
from cedana_sched.coordinator.core.book import Book
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.orders import SnapshotFound
from cedana_sched.model.records import Restore

STALE_ANSWERS = 3
"""An older generation than the newest committed one counts as a late answer so often; then it is accepted."""
STALE_SECONDS = 1.0
"""After which it is looked for again."""
MOST_DAMAGED = 16
"""So many snapshots that cannot be read whole are passed over for an older one; a node could name them without end."""


def objection(book: Book, restore: Restore, found: SnapshotFound, trouble: str | None) -> str | None:
    """Why a restore is refused after this answer; None where it is not, or where there is nothing to continue from.

    `trouble`: why its last order did not get through.
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
    """Why no older one is looked for; None where it is."""
    if len(restore.damaged) < MOST_DAMAGED:
        return None
    return f"{damaged} cannot be read whole, nor can {MOST_DAMAGED} newer ones: {why}"


def is_older_than_committed(book: Book, restore: Restore, snapshot: SnapshotRef) -> bool:
    """Whether the answer is older than a commit on record: then it was on its way for long."""
    if restore.requested_snapshot is not None:
        return False
    newest = max((ref.generation for ref in obstacles.committed(book, restore)), default=0)
    return snapshot.generation < newest


def manifest_of(book: Book, restore: Restore, snapshot: SnapshotRef) -> str:
    """The digest of its manifest; empty where no checkpoint says."""
    known = book.of_identity(snapshot.identity, restore.workload)
    made = (one for one in known if one.snapshot == snapshot)
    return next((one.manifest_digest for one in made if one.manifest_digest), "")


def _is_newer_than_damaged(book: Book, restore: Restore, snapshot: SnapshotRef) -> bool:
    """Whether an older one was looked for, and this one is in no record."""
    is_newer = bool(restore.damaged) and snapshot > min(restore.damaged)
    return is_newer and snapshot not in obstacles.committed(book, restore)
