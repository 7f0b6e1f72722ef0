"""Has nodes collect the namespaces of the bucket that no agent can collect, because none of its pods is on a node.

The keys of the whole bucket are here, and here is nothing collected: no key is here that opens what is sealed, so that
nobody could see which packs a manifest needs; and where all keys are, nothing is parsed that somebody has written into
the bucket. So names and dates say, from time to time, which namespaces have something to collect, and a few nodes get a
turn.

A turn is a right to remove. So the coordinator's own node gets it where it has an agent, for whoever owns that node has
the keys anyway. Else any node does, but of no namespace to whose snapshots somebody may come back.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.cluster.collection_turns import KEY, TURN_SECONDS, CollectionTurn, written
from cedana_sched.cluster.coordinator.credentials import grants
from cedana_sched.cluster.coordinator.known import KnownCheckpoint
from cedana_sched.cluster.coordinator.removers import has_agent
from cedana_sched.kube.client import Api
from cedana_sched.kube.objects import Node, PartialObject, Pod
from cedana_sched.kube.resources import CONFIG_MAPS, NAMESPACES
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.errors import CedanaSchedError, UsageError
from cedana_sched.model.identity import may_be_one_namespace, name_of_namespace, uid_of_namespace, validate_namespace
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.leftovers import IDLE_SECONDS, look_for_leftovers, seconds_until_due

log = structlog.get_logger(__name__)

ROUND_SECONDS: Final = 300.0
"""Between two looks at the bucket, which has no watch."""
LOOKS_A_ROUND: Final = 64
"""Namespaces that are looked at in one round: each costs a handful of requests."""
MOST_TURNS: Final = 4
"""That stand at once."""
BUSY_SECONDS: Final = 3600.0
"""Until a namespace is looked at again that agents collect by themselves, or that is left alone."""


class Collections:
    """Run `run` as a task. The store is asked in a thread of its own, one call after the other.

    Args:
        api: may patch the ConfigMap, and read namespaces.
        open_bucket: all of it.
        name: of the ConfigMap; see `collection_turns`.
        namespace: of the ConfigMap.
        nodes: all of the cluster.
        pods: every protected pod.
        checkpoints: all of the cluster.
        shared: see `identity.is_shared`.
        own_node: that this process is on; empty: nobody has said.
        clock: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        api: Api,
        open_bucket: Callable[[], Backend],
        name: str,
        namespace: str,
        nodes: Informer[Node],
        pods: Informer[Pod],
        checkpoints: Informer[KnownCheckpoint],
        *,
        shared: Collection[str] = (),
        own_node: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._open_bucket = open_bucket
        self._name = name
        self._namespace = namespace
        self._nodes = nodes
        self._pods = pods
        self._checkpoints = checkpoints
        self._shared = frozenset(shared)
        self._own_node = own_node
        self._clock = clock
        self._threads = StoreThreads(1, name="collections")
        self._bucket: Backend | None = None
        self._turns: tuple[CollectionTurn, ...] = ()
        self._looked_at_next: dict[str, float] = {}
        self._turns_of: dict[str, int] = {}
        """How many turns a namespace has had since it was last found with nothing to collect."""

    async def run(self) -> None:
        """Look, and give turns, for ever."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            try:
                await self.look()
            except CedanaSchedError as error:
                log.warning("no turns to collect garbage given, trying again", problem=str(error))
            except Exception:  # a defect that one bucket shows must not end what else the coordinator does
                log.exception("no turns to collect garbage given, trying again")

    async def look(self) -> None:
        """One round.

        Raises:
            StoreError: the bucket cannot be asked now.
            ApiError: the API server cannot.
        """
        self._turns = tuple(one for one in self._turns if SERVER_TIME.seconds() < one.until)
        free = MOST_TURNS - len(self._turns)
        able = {node.metadata.name for node in self._nodes if has_agent(node)}
        if free <= 0 or not able:
            return
        if self._bucket is None:
            self._bucket = await self._threads.run(self._open_bucket)
        there = await self._threads.run(self._bucket.folders, layout.ROOT)
        self._forget_all_but(there)
        kept = {} if self._own_node in able else self._uids_with_snapshots()
        due = await self._due(self._bucket, there, kept, free)
        if due:
            await self._give(due, able)

    def _forget_all_but(self, there: Iterable[str]) -> None:
        """What is gone counts as found empty: whoever lays it anew gets no more turns by that."""
        kept, now = frozenset(there), self._clock()
        for name in self._turns_of.keys() - kept:
            del self._turns_of[name]
            self._looked_at_next[name] = now + IDLE_SECONDS
        self._looked_at_next = {name: at for name, at in self._looked_at_next.items() if name in kept or now < at}

    def _uids_with_snapshots(self) -> dict[str, set[str]]:
        """Of the namespaces in which Checkpoints have snapshots, by name."""
        uids: dict[str, set[str]] = {}
        for one in self._checkpoints:
            if one.snapshot is not None:
                uids.setdefault(one.metadata.namespace, set()).add(one.spec.namespace_uid)
        return uids

    async def _due(
        self, bucket: Backend, there: Iterable[str], kept: Mapping[str, Collection[str]], most: int
    ) -> list[str]:
        """The namespaces that should be collected now, and that nobody else collects; `kept` are left alone."""
        store_time = await self._threads.run(bucket.now)
        busy = {pod.metadata.namespace for pod in self._pods if pod.spec.node_name and not pod.finished}
        now = self._clock()
        waiting = [one for one in there if self._looked_at_next.get(one, now) <= now]
        due: list[str] = []
        for namespace in random.sample(waiting, min(len(waiting), LOOKS_A_ROUND)):
            is_left_alone = not _is_name(namespace) or _is_among(namespace, kept)
            if is_left_alone or await self._is_collected_by_agents(namespace, busy):
                self._looked_at_next[namespace] = now + BUSY_SECONDS
                continue
            found = await self._threads.run(look_for_leftovers, bucket, namespace)
            pause = seconds_until_due(found, store_time)
            if pause == 0:
                due.append(namespace)
                pause = self._pause_after_turn(namespace)
            elif found.condemned is None:
                self._turns_of.pop(namespace, None)
            self._looked_at_next[namespace] = now + pause
            if len(due) == most:
                break
        return due

    async def _is_collected_by_agents(self, namespace: str, busy: Collection[str]) -> bool:
        """Whether a node gets credentials of it by a pod; an older namespace of the same name has none of its pods."""
        name = name_of_namespace(namespace)
        if name not in busy:
            return False
        found = await self._api.find(NAMESPACES, name, into=PartialObject)
        try:
            grants.require_current(namespace, found.metadata.uid if found is not None else None, self._shared)
        except grants.Refused:
            return False
        return True

    def _pause_after_turn(self, namespace: str) -> float:
        """Longer with each turn that leaves something to collect.

        It may be another cluster's, which no key of ours opens, or somebody may lay it there anew each time.
        """
        turns = self._turns_of.get(namespace, 0)
        self._turns_of[namespace] = turns + 1
        return min(TURN_SECONDS * 2.0 ** min(turns, 20), IDLE_SECONDS)

    async def _give(self, due: Iterable[str], able: Collection[str]) -> None:
        until = SERVER_TIME.seconds() + TURN_SECONDS
        nodes = [self._own_node] if self._own_node in able else sorted(able)
        given = tuple(CollectionTurn(random.choice(nodes), namespace, until) for namespace in due)  # noqa: S311
        turns = (*self._turns, *given)
        await self._api.patch(CONFIG_MAPS, self._name, self._namespace, {"data": {KEY: written(turns)}})
        self._turns = turns
        for one in given:
            log.info("turn to collect garbage given", namespace=one.namespace, node=one.node)


def _is_among(namespace: str, uids: Mapping[str, Collection[str]]) -> bool:
    """Whether what the store calls so may be one of these namespaces of Kubernetes."""
    uid = uid_of_namespace(namespace)
    return any(may_be_one_namespace(uid, one) for one in uids.get(name_of_namespace(namespace), ()))


def _is_name(folder: str) -> bool:
    try:
        validate_namespace(folder)
    except UsageError:
        return False
    return True
