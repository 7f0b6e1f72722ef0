"""Index keys: an object's own uid, or that of its controller."""

from __future__ import annotations

from cedana_sched.kube.watching import HasMetadata


def own_uid(one: HasMetadata) -> str:
    return one.metadata.uid


def owner_uid(one: HasMetadata) -> str | None:
    """Return the uid of its controller; None if it has none."""
    owner = one.metadata.owner
    return owner.uid if owner else None
