"""Generations that a new one abandons: those that no newer one continues.

A generation continues the previous one of its own run, or the one from which its run was restored. Generations
committed in between are another lineage, whose work only its newest generation has: a workload that starts cold,
because the store was unavailable, would otherwise displace days of work by minutes of work.
"""

from __future__ import annotations

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.lineage import Abandoned, Lineage
from cedana_sched.model.manifest import SnapshotSummary
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.generation_names import Generations

NOW = 0.0
"""Placeholder for `since` until the commit sets the snapshot's time."""


def abandoned_generations(
    catalogue: Catalogue, generations: Generations, identity: Identity, lineage: Lineage | None
) -> tuple[Abandoned, ...]:
    """Return the generations that the next one does not continue, newest first. Costs the read of a header or two."""
    there = sorted((ref for ref in generations.committed if ref.identity == identity), reverse=True)
    summaries = (catalogue.summary_if_readable(ref, generations.committed[ref]) for ref in there)
    newest = next((one for one in summaries if one is not None), None)
    if newest is None:
        return ()
    parent = _parent_generation(newest, lineage)
    found = {one.generation: one for one in newest.abandons}
    if newest.ref.generation > parent:
        found[newest.ref.generation] = Abandoned(newest.ref.generation, NOW)
        origin = SnapshotRef(identity, parent)
        before = catalogue.summary_if_readable(origin, generations.committed[origin]) if origin in there else None
        found |= {one.generation: one for one in before.abandons} if before is not None else {}
    left = {ref.generation for ref in there if ref.generation != parent}
    return tuple(found[number] for number in sorted(left & found.keys(), reverse=True))


def _parent_generation(newest: SnapshotSummary, lineage: Lineage | None) -> int:
    """Return the generation that the next one continues; 0 if it is none of this identity's."""
    if lineage is None or newest.run == lineage.run:
        return newest.ref.generation
    continues = lineage.continues
    return continues.generation if continues is not None and continues.identity == newest.ref.identity else 0
