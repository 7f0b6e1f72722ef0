"""What only a node sees of where a workload's work comes from: which of its processes began anew."""

from __future__ import annotations

from hashlib import blake2b

from msgspec.structs import replace

from cedana_sched.agent.runtime import RunningWorkload
from cedana_sched.model.lineage import Lineage

_DIGEST_BYTES = 8


def lineage_of(told: Lineage | None, running: RunningWorkload) -> Lineage | None:
    """What the coordinator knows, less what a container lost that its kubelet has started again in place.

    A container that is started again has another control group, and so its work is another run's.
    """
    if told is None:
        return None
    trees = "\n".join(sorted(str(container.freezer) for container in running.containers))
    run = f"{told.run}/{blake2b(trees.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
    came_back = all(container.continued for container in running.containers)
    return replace(told, run=run, continues=told.continues if came_back else None)
