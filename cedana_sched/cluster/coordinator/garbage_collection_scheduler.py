"""Assigns nodes to collect namespaces of the bucket that no agent collects, because no node has a pod of them.

The coordinator has the keys of the whole bucket, and does not collect itself: it has no key to unseal manifests, and so
cannot see which packs they need; and where all keys are, no tenant-written content of the bucket is parsed. So names
and dates alone show, from time to time, which namespaces have garbage, and a few nodes get a turn.

A turn is a right to remove. So the coordinator's own node gets it if it has an agent, because that node's root has the
keys anyway. Else any node gets it, but only for namespaces without snapshots that may still be restored.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.cluster.collection_turns import KEY, TURN_SECONDS, CollectionTurn, encode_turns
from cedana_sched.cluster.coordinator.credentials import authorization_rules
from cedana_sched.cluster.coordinator.removal_agent_choice import has_agent
from cedana_sched.kube.builtin_kinds import Node, PartialObject, Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import CONFIG_MAPS, NAMESPACES
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.errors import CedanaSchedError, UsageError
from cedana_sched.model.identity import may_be_same_namespace, name_of_namespace, uid_of_namespace, validate_namespace
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.garbage_detection import IDLE_SECONDS, look_for_leftovers, seconds_until_due

log = structlog.get_logger(__name__)

ROUND_SECONDS: Final = 300.0
"""Interval between two scans of the bucket, which has no watch."""
LOOKS_A_ROUND: Final = 64
"""Maximum namespaces scanned per round; each costs a handful of requests."""
MOST_TURNS: Final = 4
"""Maximum concurrent turns."""
BUSY_SECONDS: Final = 3600.0
"""Until the next scan of a namespace that agents collect themselves, or that is skipped."""


class GarbageCollectionScheduler:
    """Scheduler of collection turns. Run `run` as a task; store calls run in a separate thread, one at a time.

    Args:
        api: may patch the ConfigMap, and read namespaces.
        open_bucket: opens the whole bucket.
        name: of the ConfigMap; see `collection_turns`.
        namespace: of the ConfigMap.
        nodes: all of the cluster.
        pods: all protected pods.
        checkpoints: all of the cluster.
        shared: see `identity.is_keyed_by_name`.
        own_node: node of this process; empty: unknown.
        clock: monotonic seconds.
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
        """Turns of a namespace since a scan last found nothing to collect."""

    async def run(self) -> None:
        """Scan and assign turns, forever."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            try:
                await self.run_round()
            except CedanaSchedError as error:
                log.warning("no turns to collect garbage given, trying again", error=str(error))
            except Exception:  # a defect triggered by one bucket must not end the coordinator
                log.exception("no turns to collect garbage given, trying again")

    async def run_round(self) -> None:
        """Run one round.

        Raises:
            StoreError: the bucket is unavailable.
            ApiError: the API server is unavailable.
        """
        self._turns = tuple(one for one in self._turns if SERVER_TIME.seconds() < one.until)
        free = MOST_TURNS - len(self._turns)
        able = {node.metadata.name for node in self._nodes if has_agent(node)}
        if free <= 0 or not able:
            return
        if self._bucket is None:
            self._bucket = await self._threads.run(self._open_bucket)
        there = await self._threads.run(self._bucket.folder_names, layout.ROOT)
        self._forget_all_but(there)
        kept = {} if self._own_node in able else self._uids_with_snapshots()
        due = await self._choose_due_namespaces(self._bucket, there, kept, free)
        if due:
            await self._assign_turns(due, able)

    def _forget_all_but(self, there: Iterable[str]) -> None:
        """Treat deleted folders as scanned empty: recreating them yields no additional turns."""
        kept, now = frozenset(there), self._clock()
        for name in self._turns_of.keys() - kept:
            del self._turns_of[name]
            self._looked_at_next[name] = now + IDLE_SECONDS
        self._looked_at_next = {name: at for name, at in self._looked_at_next.items() if name in kept or now < at}

    def _uids_with_snapshots(self) -> dict[str, set[str]]:
        """Return the uids of namespaces whose Checkpoints have snapshots, by name."""
        uids: dict[str, set[str]] = {}
        for one in self._checkpoints:
            if one.snapshot is not None:
                uids.setdefault(one.metadata.namespace, set()).add(one.spec.namespace_uid)
        return uids

    async def _choose_due_namespaces(
        self, bucket: Backend, there: Iterable[str], kept: Mapping[str, Collection[str]], most: int
    ) -> list[str]:
        """Return namespaces to collect now that no agent collects; those in `kept` are skipped."""
        store_time = await self._threads.run(bucket.store_time)
        busy = {pod.metadata.namespace for pod in self._pods if pod.spec.node_name and not pod.finished}
        now = self._clock()
        waiting = [one for one in there if self._looked_at_next.get(one, now) <= now]
        due: list[str] = []
        for namespace in random.sample(waiting, min(len(waiting), LOOKS_A_ROUND)):
            is_left_alone = not _is_name(namespace) or _is_one_of_namespaces(namespace, kept)
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
        """Whether a pod gives some node credentials of it; an older namespace of the same name has no pods."""
        name = name_of_namespace(namespace)
        if name not in busy:
            return False
        found = await self._api.find(NAMESPACES, name, into=PartialObject)
        try:
            authorization_rules.require_current_namespace(
                namespace, found.metadata.uid if found is not None else None, self._shared
            )
        except authorization_rules.CredentialsRefused:
            return False
        return True

    def _pause_after_turn(self, namespace: str) -> float:
        """Return a backoff that doubles with each turn that leaves something to collect.

        The garbage may belong to another cluster, sealed with a foreign key, or a tenant may recreate it each time.
        """
        turns = self._turns_of.get(namespace, 0)
        self._turns_of[namespace] = turns + 1
        return min(TURN_SECONDS * 2.0 ** min(turns, 20), IDLE_SECONDS)

    async def _assign_turns(self, due: Iterable[str], able: Collection[str]) -> None:
        until = SERVER_TIME.seconds() + TURN_SECONDS
        nodes = [self._own_node] if self._own_node in able else sorted(able)
        given = tuple(CollectionTurn(random.choice(nodes), namespace, until) for namespace in due)  # noqa: S311
        turns = (*self._turns, *given)
        await self._api.patch(CONFIG_MAPS, self._name, self._namespace, {"data": {KEY: encode_turns(turns)}})
        self._turns = turns
        for one in given:
            log.info("turn to collect garbage given", namespace=one.namespace, node=one.node)


def _is_one_of_namespaces(namespace: str, uids: Mapping[str, Collection[str]]) -> bool:
    """Whether the store's name may denote one of these Kubernetes namespaces."""
    uid = uid_of_namespace(namespace)
    return any(may_be_same_namespace(uid, one) for one in uids.get(name_of_namespace(namespace), ()))


def _is_name(folder: str) -> bool:
    try:
        validate_namespace(folder)
    except UsageError:
        return False
    return True
