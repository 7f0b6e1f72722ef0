"""Lineage of snapshots, by which retention distinguishes superseded generations from abandoned work."""

from __future__ import annotations

import msgspec

from cedana_sched.model.identity import SnapshotRef


class Lineage(msgspec.Struct, frozen=True):
    """Origin of the work in a snapshot."""

    run: str
    """The start of the program: snapshots of one run supersede each other."""
    continues: SnapshotRef | None = None
    """The snapshot from which that run was restored; None for a cold start."""


class Abandoned(msgspec.Struct, frozen=True, array_like=True):
    """Last generation of a lineage that no newer generation continues: the only copy of that work."""

    generation: int
    since: float
    """When the first snapshot of the other lineage was taken (epoch seconds)."""
