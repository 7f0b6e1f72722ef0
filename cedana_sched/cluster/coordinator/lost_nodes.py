"""Permanently lost nodes: deleted, or tainted as out of service. Work in flight there is given up.

A node may be made again under its name while the watch is broken, or no coordinator leads. It is another node: the work
that began before it was made is lost.

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
from cedana_sched.kube.builtin_kinds import Node, read_time
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
    service, unknown, or made again."""


class LostNodes:
    """The losses of nodes.

    Args:
        api: may get nodes.
        nodes: all of the cluster.
        dependencies: nodes that records depend on.
    """

    def __init__(self, api: Api, nodes: Informer[Node], dependencies: PodNodeDependencies) -> None:
        self._api = api
        self._nodes = nodes
        self._dependencies = dependencies

    async def follow(self) -> AsyncIterator[NodeLost]:
        """Yield lost nodes, also those lost without a leader.

        A node out of service is repeated for each record that comes to depend on it: its agent would not answer. That
        ends no restore: those of the lost node have ended already. A restarted agent finds its orders in the objects,
        so orders need no repetition.
        """
        suspected: asyncio.Queue[_Suspected] = asyncio.Queue()

        def on_node_changed(before: Node | None, now: Node | None) -> None:
            is_same = before is not None and now is not None and before.metadata.uid == now.metadata.uid
            if before is not None and not is_same:
                name, uid = before.metadata.name, before.metadata.uid
                suspected.put_nowait(_Suspected(NodeLost(name), deleted_uid=uid))
            if now is not None and now.is_out_of_service and not (is_same and before and before.is_out_of_service):
                suspected.put_nowait(_Suspected(NodeLost(now.metadata.name)))

        def on_dependency(workload: WorkloadRef) -> None:
            if (node := self._nodes.get(workload.node)) is not None and node.is_out_of_service:
                suspected.put_nowait(_Suspected(NodeLost(workload.node, keeps_restores=True)))

        await self._nodes.synced.wait()
        self._nodes.subscribe(on_node_changed)
        self._dependencies.subscribe(on_dependency)
        oldest = self._dependencies.oldest_record_times()
        for name in sorted(self._dependencies.nodes()):
            if has_node_gone(self._nodes.get(name), oldest[name]):
                suspected.put_nowait(_Suspected(NodeLost(name)))
        try:
            while True:
                one = await suspected.get()
                if (loss := await self._confirm(one)) is not None:
                    yield loss
        finally:
            self._nodes.unsubscribe(on_node_changed)
            self._dependencies.unsubscribe(on_dependency)

    async def _confirm(self, suspected: _Suspected) -> NodeLost | None:
        """Read the node itself, with backoff until the API server answers; None if it is not lost."""
        name, backoff = suspected.loss.node, Backoff(API_CALLS)
        while True:
            try:
                node = await self._api.find(NODES, name, into=Node)
            except ApiError as error:
                pause = backoff.next_pause()
                log.warning("node not read, trying again", node=name, error=error.message, pause_seconds=pause)
                await asyncio.sleep(pause)
                continue
            if node is None or node.is_out_of_service:
                return suspected.loss
            is_another = suspected.deleted_uid not in {None, node.metadata.uid}
            if is_another or has_node_gone(node, self._dependencies.oldest_record_times().get(name)):
                return msgspec.structs.replace(suspected.loss, began_before=_made_at(node))
            log.info("node is not lost: the cache was late", node=name)
            return None


def _made_at(node: Node) -> float | None:
    """Return when another node can have lost its name at the latest (epoch seconds); the API server cuts fractions."""
    created = read_time(node.metadata.creation_timestamp)
    return None if created is None else created + 1.0
