"""Removing generations: which ones a policy gives up, and how one disappears."""

from __future__ import annotations

from collections.abc import Sequence

from cedana_sched.model.errors import NotFoundError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.manifest import SnapshotSummary
from cedana_sched.model.policy import Retention
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.catalogue import Catalogue


def expired(summaries: Sequence[SnapshotSummary], retention: Retention, now: float) -> list[SnapshotRef]:
    """What the policy gives up of one identity's snapshots, oldest first; never the newest. `now` is epoch seconds."""
    by_age = sorted(summaries, key=lambda one: one.ref.generation)
    gone = []
    for newer, one in zip(range(len(by_age) - 1, 0, -1), by_age, strict=False):
        too_many = newer >= retention.keep_last
        too_old = retention.max_age_seconds is not None and now - one.committed_at > retention.max_age_seconds
        if too_many or too_old:
            gone.append(one.ref)
    return gone


def remove_snapshot(backend: Backend, catalogue: Catalogue, ref: SnapshotRef) -> None:
    """Take the manifest away; its packs go with the next garbage collections, unless others need them.

    A marker stays, first written: the number must not come back, and a removal cut off here is complete for readers.

    Raises:
        NotFoundError: there is no such snapshot.
    """
    entry = catalogue.of(ref.identity).committed.get(ref)
    if entry is None:
        raise NotFoundError("snapshot", str(ref), "does not exist", remedy="list the snapshots to see which there are")
    backend.put(layout.removed_key(ref), b"")
    backend.delete([entry.key])
