"""Permanently lost nodes: deleted, or tainted as out of service. Work in flight there is given up.

The cache of nodes may be late: the taint may be removed already, and the node's agent be at work. So each loss is
confirmed with the API server before anything ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import structlog

from cedana_sched.cluster.coordinator.pod_fencing import has_node_gone
from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.coordinator.core import NodeLost
from cedana_sched.kube.builtin_kinds import Node
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.resources import NODES
from cedana_sched.kube.watching import Informer
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.retrying import API_CALLS, Backoff

log = structlog.get_logger(__name__)


class _Suspected(msgspec.Struct, frozen=True):
    loss: NodeLost
    deleted_uid: str | None = None
    """Uid of the object that was deleted: one of its name with another uid began afterwards. None: the node was out of
    service, or unknown."""


class LostNodes:
    """The losses of nodes.

    Args:
        api: may get nodes.
        nodes: all of the cluster.
        alive: nodes that records depend on.
    """

    def __init__(self, api: Api, nodes: Informer[Node], alive: PodNodeDependencies) -> None:
        self._api = api
        self._nodes = nodes
        self._alive = alive

    async def follow(self) -> AsyncIterator[NodeLost]:
        """Yield lost nodes, also those lost without a leader.

        A node out of service is repeated for each record that comes to depend on it: its agent would not answer. That
        ends no restore: those of the lost node have ended already. A restarted agent finds its orders in the objects,
        so orders need no repetition.
        """
        suspected: asyncio.Queue[_Suspected] = asyncio.Queue()

        def on_node_changed(before: Node | None, now: Node | None) -> None:
            if now is None and before is not None:
                name, uid = before.metadata.name, before.metadata.uid
                suspected.put_nowait(_Suspected(NodeLost(name), deleted_uid=uid))
            elif now is not None and now.is_out_of_service and (before is None or not before.is_out_of_service):
                suspected.put_nowait(_Suspected(NodeLost(now.metadata.name)))

        def on_dependency(workload: WorkloadRef) -> None:
            if (node := self._nodes.get(workload.node)) is not None and node.is_out_of_service:
                suspected.put_nowait(_Suspected(NodeLost(workload.node, keeps_restores=True)))

        await self._nodes.synced.wait()
        self._nodes.subscribe(on_node_changed)
        self._alive.subscribe(on_dependency)
        for name in sorted(self._alive.nodes()):
            if has_node_gone(self._nodes.get(name)):
                suspected.put_nowait(_Suspected(NodeLost(name)))
        try:
            while True:
                one = await suspected.get()
                if await self._is_lost(one):
                    yield one.loss
        finally:
            self._nodes.unsubscribe(on_node_changed)
            self._alive.unsubscribe(on_dependency)

    async def _is_lost(self, suspected: _Suspected) -> bool:
        """Read the node itself, with backoff until the API server answers."""
        name, backoff = suspected.loss.node, Backoff(API_CALLS)
        while True:
            try:
                node = await self._api.find(NODES, name, into=Node)
            except ApiError as error:
                pause = backoff.next_pause()
                log.warning("node not read, trying again", node=name, error=error.message, pause_seconds=pause)
                await asyncio.sleep(pause)
                continue
            if node is None or node.is_out_of_service or suspected.deleted_uid not in {None, node.metadata.uid}:
                return True
            log.info("node is not lost: the cache was late", node=name)
            return False
