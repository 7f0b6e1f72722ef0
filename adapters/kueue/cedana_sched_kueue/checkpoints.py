"""What an admitted Workload continues from, in words for people; nothing depends on it."""

from __future__ import annotations

from collections.abc import Iterable

from cedana_sched.model.identity import Identity, SnapshotRef


def in_words(snapshots: Iterable[SnapshotRef]) -> str:
    """The newest snapshot of every replica: the first one by name, the others by their number."""
    newest: dict[Identity, SnapshotRef] = {}
    for one in snapshots:
        newest[one.identity] = max(one, newest.get(one.identity, one))
    if not newest:
        return "starts from the beginning"
    first, *others = (newest[identity] for identity in sorted(newest))
    more = f" and {len(others)} more" if others else ""
    return f"continues from {first.identity.id}/{first.identity.index}@{first.generation}{more}"
