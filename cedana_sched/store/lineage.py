"""Which generations a new one leaves behind: those that nothing newer continues.

A generation goes back to the one before it of its own run, or to the one that its run was continued from. Whatever was
committed between the two is another line of work, whose newest generation alone holds what was done there: a workload
that starts cold, because the store was away, would else push days of work out by minutes of work.
"""

from __future__ import annotations

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.lineage import Abandoned, Lineage
from cedana_sched.model.manifest import SnapshotSummary
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.generations import Generations

NOW = 0.0
"""Stands for `since` until the commit says when the snapshot was taken."""


def abandoned(
    catalogue: Catalogue, generations: Generations, identity: Identity, lineage: Lineage | None
) -> tuple[Abandoned, ...]:
    """What the next generation does not continue, newest first. Costs a read of a header where it is told anything."""
    there = sorted((ref for ref in generations.committed if ref.identity == identity), reverse=True)
    summaries = (catalogue.summary_if_readable(ref, generations.committed[ref]) for ref in there)
    newest = next((one for one in summaries if one is not None), None)
    if newest is None:
        return ()
    parent = _parent(newest, lineage)
    found = {one.generation: one for one in newest.abandons}
    if newest.ref.generation > parent:
        found[newest.ref.generation] = Abandoned(newest.ref.generation, NOW)
        origin = SnapshotRef(identity, parent)
        before = catalogue.summary_if_readable(origin, generations.committed[origin]) if origin in there else None
        found |= {one.generation: one for one in before.abandons} if before is not None else {}
    left = {ref.generation for ref in there if ref.generation != parent}
    return tuple(found[number] for number in sorted(left & found.keys(), reverse=True))


def _parent(newest: SnapshotSummary, lineage: Lineage | None) -> int:
    """The generation that the next one continues; 0 where it is none of this identity's."""
    if lineage is None or newest.run == lineage.run:
        return newest.ref.generation
    continues = lineage.continues
    return continues.generation if continues is not None and continues.identity == newest.ref.identity else 0
