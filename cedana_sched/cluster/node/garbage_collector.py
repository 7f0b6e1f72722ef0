"""Collects the garbage of namespaces assigned to this node in turns, although the node has none of their pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from cedana_sched.agent.garbage import EVERY_SECONDS
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.cluster.collection_turns import CollectionTurn, CollectionTurns
from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import CONFIG_MAPS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.store.collection_turns import TurnResult
from cedana_sched.store.snapshot_store import SnapshotStore

log = structlog.get_logger(__name__)


class GarbageCollector:
    """Takes this node's collection turns: one namespace after the other, in a thread of its own. Run `run` as a task.

    Args:
        api: may watch the ConfigMap.
        node: our own.
        name: of the ConfigMap; see `collection_turns`.
        namespace: of the ConfigMap.
        open_store: opens the store with credentials that only collect; called for each turn, so that no credentials
            outlive their turn.
    """

    def __init__(self, api: Api, node: str, name: str, namespace: str, open_store: Callable[[], SnapshotStore]) -> None:
        self._node = node
        self._open_store = open_store
        fields = f"metadata.name={name}"
        self._informer = Informer(Watch(api, CONFIG_MAPS, CollectionTurns, namespace=namespace, fields=fields))
        self._threads = StoreThreads(1, name="collection")
        self._taken: set[CollectionTurn] = set()

    async def run(self) -> None:
        """Collect until cancelled."""
        async with asyncio.TaskGroup() as group:

            def on_turns_change(_before: CollectionTurns | None, now: CollectionTurns | None) -> None:
                standing = now.unexpired_turns(SERVER_TIME.seconds()) if now is not None else ()
                ours = {one for one in standing if one.node == self._node}
                for turn in ours - self._taken:
                    group.create_task(self._collect(turn), name=f"garbage of {turn.namespace}")
                self._taken = ours

            self._informer.subscribe(on_turns_change)
            await self._informer.run()

    async def _collect(self, turn: CollectionTurn) -> None:
        try:
            done = await self._threads.run(self._collect_now, turn)
        except CedanaSchedError as error:
            log.warning("garbage not collected", namespace=turn.namespace, error=str(error))
            return
        except Exception:  # a defect in one namespace must not end the agent's other tasks
            log.exception("garbage not collected", namespace=turn.namespace)
            return
        if done is None or done.report is None:
            log.info("garbage is collected by another node", namespace=turn.namespace)
            return
        log.info(
            "garbage collected",
            namespace=turn.namespace,
            condemned=done.report.condemned_packs,
            removed=done.report.removed_packs,
            removed_bytes=done.report.removed_bytes,
        )

    def _collect_now(self, turn: CollectionTurn) -> TurnResult | None:
        """Return None if the turn has expired while other namespaces were collected."""
        if SERVER_TIME.seconds() >= turn.until:
            return None
        return self._open_store().collect_in_turn(turn.namespace, EVERY_SECONDS)
