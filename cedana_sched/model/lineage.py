"""Where the work in a snapshot comes from: retention tells an older generation of it from work that was left."""

from __future__ import annotations

import msgspec

from cedana_sched.model.identity import SnapshotRef


class Lineage(msgspec.Struct, frozen=True):
    """What a program that is saved goes back to."""

    run: str
    """Which start of the program it is: snapshots of one run follow each other."""
    continues: SnapshotRef | None = None
    """What that run was continued from; None when it began from its beginning."""


class Abandoned(msgspec.Struct, frozen=True, array_like=True):
    """The last generation of a line of work that no newer generation continues: it alone holds that work."""

    generation: int
    since: float
    """When the first snapshot of the other line was taken (epoch seconds)."""
