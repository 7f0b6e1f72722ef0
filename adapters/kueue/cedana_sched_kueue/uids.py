"""Under which uid the adapter finds an object again: its own, or that of what controls it."""

from __future__ import annotations

from cedana_sched.kube.watching import HasMetadata


def own_uid(one: HasMetadata) -> str:
    return one.metadata.uid


def owner_uid(one: HasMetadata) -> str | None:
    """None where nothing controls it."""
    owner = one.metadata.owner
    return owner.uid if owner else None
