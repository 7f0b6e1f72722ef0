"""Quick failures per snapshot, kept in the restores and handed on from each restore to the next.

The counts survive coordinator, pods and the time between restores, and expire with the identity's last restore.
"""

from __future__ import annotations

from cedana_sched.adapter.contract import Ended
from cedana_sched.coordinator.core.book import Book
from cedana_sched.coordinator.core.timing import Timing
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.preemption import AfterCommit, Verdict
from cedana_sched.model.records import Restore, RestoreStep

MOST = 200
"""Quick failures kept per identity; older ones are dropped."""

_CONTINUED = frozenset({RestoreStep.RESTORING, RestoreStep.RUNNING})
_EVICTED = frozenset({Verdict.COMMITTED, Verdict.EVICT})


def known(book: Book, restore: Restore) -> tuple[SnapshotRef, ...]:
    """Return the quick failures handed on by the identity's previous restore."""
    returns = book.restores_of(restore.identity, restore.workload)
    before = [one for one in returns if one.uid != restore.uid and one.finished_at]
    return max(before, key=lambda one: one.finished_at or 0.0).quick_failures if before else ()


def after(
    book: Book, restore: Restore, deaths: tuple[SnapshotRef, ...], ended: Ended | None, now: float
) -> tuple[SnapshotRef, ...]:
    """Return the quick failures that this restore hands on after its workload ended.

    Eviction, success and node loss are no evidence; a long run clears the snapshot's failures.
    """
    ref = restore.snapshot
    if ref is None or restore.cold or restore.step not in _CONTINUED:
        return deaths
    lived = now - restore.running_at if restore.running_at is not None else 0.0
    if ended is not None and ended.ran_seconds is not None:
        lived = ended.ran_seconds
    if lived >= restore.policy.quick_failure_seconds:
        return tuple(one for one in deaths if one != ref)
    if ended is None or not ended.failed or _is_evicted(book, restore):
        return deaths
    return (*deaths, ref)[-MOST:]


def forget_at(book: Book, restore: Restore, finished_at: float, timing: Timing) -> float:
    """Return when a finished restore expires, late enough for a later one to take over its quick failures."""
    is_last = book.restores_of(restore.identity, restore.workload)[-1].uid == restore.uid
    return finished_at + (timing.remember_deaths if restore.quick_failures and is_last else timing.remember)


def _is_evicted(book: Book, restore: Restore) -> bool:
    checkpoints = book.of_workload(restore.workload.uid)
    return any(
        one.after_commit is AfterCommit.STOP and (not one.is_terminal or one.verdict in _EVICTED) for one in checkpoints
    )
