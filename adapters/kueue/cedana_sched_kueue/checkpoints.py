"""Message about the snapshots that an admitted Workload restores; for users only."""

from __future__ import annotations

from collections.abc import Iterable

from cedana_sched.model.identity import Identity, SnapshotRef


def in_words(snapshots: Iterable[SnapshotRef]) -> str:
    """Describe the newest snapshot of each replica: the first one by name, the others by count."""
    newest: dict[Identity, SnapshotRef] = {}
    for one in snapshots:
        newest[one.identity] = max(one, newest.get(one.identity, one))
    if not newest:
        return "starts from the beginning"
    first, *others = (newest[identity] for identity in sorted(newest))
    more = f" and {len(others)} more" if others else ""
    return f"continues from {first.identity.id}/{first.identity.index}@{first.generation}{more}"
