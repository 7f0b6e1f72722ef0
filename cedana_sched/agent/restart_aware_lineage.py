"""The part of a workload's lineage that only its node sees: which of its containers were restarted in place."""

from __future__ import annotations

from hashlib import blake2b

from msgspec.structs import replace

from cedana_sched.agent.workload_runtime import RunningWorkload
from cedana_sched.model.lineage import Lineage

_DIGEST_BYTES = 8


def adjust_lineage_to_run(lineage: Lineage | None, running: RunningWorkload) -> Lineage | None:
    """Return the coordinator's lineage; `continues` only if no container was restarted in place since its restore.

    A restarted container has another control group: a digest of the control groups distinguishes runs.
    """
    if lineage is None:
        return None
    trees = "\n".join(sorted(str(container.freezer) for container in running.containers))
    run = f"{lineage.run}/{blake2b(trees.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
    came_back = all(container.is_restored for container in running.containers)
    return replace(lineage, run=run, continues=lineage.continues if came_back else None)
