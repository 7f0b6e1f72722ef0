"""Retention: selects the generations that a policy expires, and removes snapshots."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import structlog

from cedana_sched.model.errors import IncompatibleError, IntegrityError, NotFoundError, UnsealedError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.manifest import SnapshotSummary
from cedana_sched.model.policy import Retention
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.catalogue import Catalogue

_log = structlog.get_logger(__name__)


def expired_snapshots(summaries: Sequence[SnapshotSummary], retention: Retention, now: float) -> list[SnapshotRef]:
    """Return one identity's expired snapshots, oldest first; never the newest. `now` is epoch seconds.

    The policy keeps as many abandoned generations of the newest one as of a lineage, in addition.
    """
    by_age = sorted(summaries, key=lambda one: one.ref.generation)
    if not by_age:
        return []
    left = _kept_abandoned_generations(by_age[-1], {one.ref.generation for one in by_age}, retention, now)
    by_age = [one for one in by_age if one.ref.generation not in left]
    gone = []
    for newer, one in zip(range(len(by_age) - 1, 0, -1), by_age, strict=False):
        too_many = newer >= retention.keep_last
        too_old = retention.max_age_seconds is not None and now - one.committed_at > retention.max_age_seconds
        if too_many or too_old:
            gone.append(one.ref)
    return gone


def _kept_abandoned_generations(
    newest: SnapshotSummary, present: Collection[int], retention: Retention, now: float
) -> frozenset[int]:
    """Return the abandoned generations that the policy keeps.

    Their age counts from when they were abandoned: until then each was the newest, which no policy expires.
    """
    most = retention.max_age_seconds
    young = [one for one in newest.abandons if most is None or now - one.since <= most]
    return frozenset([one.generation for one in young if one.generation in present][: retention.keep_last])


def spare_last_whole(
    backend: Backend, catalogue: Catalogue, kept: Collection[SnapshotRef], gone: Sequence[SnapshotRef]
) -> list[SnapshotRef]:
    """Return `gone` without its newest whole snapshot if none of `kept` is whole: one restorable must remain."""
    if any(is_whole(backend, catalogue, ref) for ref in sorted(kept, reverse=True)):
        return list(gone)
    last = next((ref for ref in sorted(gone, reverse=True) if is_whole(backend, catalogue, ref)), None)
    _log.warning("newest_generations_damaged", kept=[str(ref) for ref in sorted(kept)], spared=str(last))
    return [ref for ref in gone if ref != last]


def is_whole(backend: Backend, catalogue: Catalogue, ref: SnapshotRef) -> bool:
    """Return whether a manifest is readable and its packs exist; only `verify` reads their bytes."""
    try:
        manifest = catalogue.read_manifest(ref)
    except (IntegrityError, IncompatibleError, NotFoundError, UnsealedError):
        return False
    folder = layout.packs_folder(ref.identity.namespace)
    return all(backend.stat(f"{folder}/{pack}") is not None for pack in manifest.summary.packs)


def remove_snapshot(backend: Backend, catalogue: Catalogue, ref: SnapshotRef) -> None:
    """Delete the manifest; the next garbage collections delete its packs, unless others need them.

    A tombstone is written first, and stays: the number must not be reused, and an interrupted removal is complete for
    readers.

    Raises:
        NotFoundError: the snapshot does not exist.
    """
    entry = catalogue.files_of_generation(ref).committed.get(ref)
    if entry is None:
        raise NotFoundError("snapshot", str(ref), "does not exist", remedy="list the snapshots to see which there are")
    backend.put(layout.removed_key(ref), b"")
    backend.delete([entry.key])
