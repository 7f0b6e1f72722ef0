"""Which identities have lost work with a node, by what really ran there: a second opinion beside the core's records.

Invariant 12: whose policy does not restore after such a loss is not restored until another workload has run; and
no workload starts cold or fails for a loss that there was not.
"""

from __future__ import annotations

from cedana_sched.coordinator.core import Core, Event
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import (
    FailWorkload,
    FindSnapshot,
    Order,
    RestoreSnapshot,
    RestoreSucceeded,
    Stage,
    StartCold,
    StartedCold,
)
from cedana_sched.model.policy import OnNodeLoss
from cedana_sched.model.records import Restore, RestoreStep
from tests.unit.coordinator.core.simulated_node import World

_HAS_RUN_NOTHING = frozenset({RestoreStep.WAITING, RestoreStep.STAGING, RestoreStep.ENDED})


class ExpectedLosses:
    """The identities of one simulation."""

    def __init__(self) -> None:
        self.lost: dict[Identity, str] = {}
        """Uid of the workload that was lost, since which nothing has run."""
        self.unclear: set[Identity] = set()
        """Lost while they were saved, or after they had died."""
        self.applied = 0
        """Orders that a loss has caused."""

    def on_node_lost(self, node: str, core: Core, world: World) -> None:
        """Look who runs there, before the core learns of it."""
        for restore in core.registry.restores_on_node(node):
            if restore.step in _HAS_RUN_NOTHING:
                continue
            process = world.processes.get(restore.workload.uid)
            self.lost.pop(restore.identity, None)
            if _has_later_run(core, restore):  # it ran beside another one of its identity, which counts
                self.unclear.add(restore.identity)
            elif process is not None and process.alive and process.frozen_by is None:
                self.unclear.discard(restore.identity)
                self.lost[restore.identity] = restore.workload.uid
            else:
                self.unclear.add(restore.identity)

    def on_event(self, event: Event, core: Core) -> None:
        """A workload that the core sees running ends the loss of its predecessor."""
        if not isinstance(event, RestoreSucceeded | StartedCold):
            return
        restore = core.registry.restores.get(event.restore_uid)
        if restore is not None and restore.running_at == core.now and restore.step is RestoreStep.RUNNING:
            self.lost.pop(restore.identity, None)
            self.unclear.discard(restore.identity)

    def forbidden_order(self, order: Order, core: Core) -> str | None:
        """Return what is wrong with an order."""
        if isinstance(order, StartCold | FailWorkload):
            restore = core.registry.restores[order.restore_uid]
            if "onNodeLoss" not in (order.why or ""):
                return None
            self.applied += 1
            if restore.identity not in self.lost and restore.identity not in self.unclear:
                return f"12: {restore.uid} is refused for a loss that there was not: {order.why}"
        if isinstance(order, FindSnapshot | Stage | RestoreSnapshot):
            restore = core.registry.restores[order.restore_uid]
            lost = self.lost.get(restore.identity)
            is_refused = restore.policy.on_node_loss is not OnNodeLoss.RESTORE and restore.requested_snapshot is None
            if lost not in {None, restore.workload.uid} and is_refused:
                return f"12: {restore.uid} is restored, although {lost} was lost with its node"
        return None


def _has_later_run(core: Core, restore: Restore) -> bool:
    of_identity = core.registry.restores_of_identity(restore.identity, restore.workload)
    later = of_identity[[one.uid for one in of_identity].index(restore.uid) + 1 :]
    return any(one.running_at is not None for one in later)
