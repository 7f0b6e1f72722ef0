"""Pod states from informers: protected pods and their holds as in the webhooks, gangs, and free resources of nodes.

Evictions are decided by the same rule as in the webhook that handles Volcano's status write a moment later, so that
evictions allowed here are allowed there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from cedana_sched.adapter.protected_pods import find_identity
from cedana_sched.eviction_holds.pod_eviction_rule import KEPT, decide, eviction_request_tracker
from cedana_sched.eviction_holds.preemption_index import PreemptionIndex
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.eviction_marker import EvictionMarker
from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint
from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.kube.resources import CHECKPOINTS, PODS, PREEMPTION_HOLDS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch, first_unsynced_reason
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import utc_datetime_of
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched_volcano.extender.free_resources import FreeResources
from cedana_sched_volcano.extender.pod_states_interface import EvictionRequester, ProtectedPodState, ProtectedPodStates
from cedana_sched_volcano.gangs import GangResolver, pod_group_key_of
from cedana_sched_volcano.objects import POD_GROUPS, PodGroup

log = structlog.get_logger(__name__)

ABSENT_PAUSE_SECONDS: Final = 10.0
GANGS_LAST_SECONDS: Final = 1.0
"""How long the cost of each gang's end is cached: a call can contain hundreds of members."""


class CachedPodStates:
    """Implements `ProtectedPodStates`. Run `run` as a task.

    Args:
        now: the time of day, by the clock that writes deadlines.
        clock: monotonic seconds.
        longest_deadline_seconds: cap on each hold.
        served: namespaces whose pods are protected; pods of others are not watched, and may be evicted.
    """

    def __init__(
        self,
        api: Api,
        now: Callable[[], datetime] = SERVER_TIME.now,
        clock: Callable[[], float] = time.monotonic,
        longest_deadline_seconds: float = LONGEST_DEADLINE_SECONDS,
        served: ServedNamespaces = EVERYWHERE,
    ) -> None:
        self._now = now
        self._pods = Informer(Watch(api, PODS, Pod, labels=f"{names.PROTECTED}=true", within=served))
        self._groups = Informer(Watch(api, POD_GROUPS, PodGroup, within=served))
        self._checkpoints = Informer(Watch(api, CHECKPOINTS, Checkpoint, within=served))
        self._holds = Informer(Watch(api, PREEMPTION_HOLDS, PreemptionHold, within=served))
        self._preemptions = PreemptionIndex(longest_deadline_seconds)
        self._checkpoints.subscribe(self._preemptions.on_checkpoint_change)
        self._holds.subscribe(self._preemptions.on_hold_change)
        self._free_resources = FreeResources(api)
        self._by_uid: Index[str, Pod] = Index(lambda pod: pod.metadata.uid, self._pods)
        self._gangs = GangResolver(self._groups, self._pods, now)
        self._costs: dict[tuple[str, str, bool], float | None] = {}
        """By PodGroup, and whether the pod is already marked: work that all members lose; None if the gang runs
        without the pod."""
        self._costs_since = now()
        self._marker = EvictionMarker(api, now)
        self._requests = eviction_request_tracker(clock)
        """Pods to be marked: bounds their hold if the mark can never be written."""

    @property
    def is_synced(self) -> bool:
        """See `ProtectedPodStates`."""
        return all(informer.synced.is_set() for informer in self._informers())

    @property
    def unsynced_reason(self) -> str | None:
        """What has not synced yet, and why."""
        return first_unsynced_reason(*self._informers())

    async def run(self) -> None:
        """Run the informers and write marks, forever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._marker.run(), name="eviction marks")
            for informer in self._informers():
                tasks.create_task(_run_informer_with_retries(informer), name="mirror")

    def state_of(self, pod_uid: str) -> ProtectedPodState | None:
        """See `ProtectedPodStates`."""
        pod = self._by_uid.unique_object_of(pod_uid)
        if pod is None:
            return None
        metadata = pod.metadata
        if pod.status.phase != "Running" or metadata.deletion_timestamp is not None or pod.is_evicted:
            return ProtectedPodState(may_go=True)
        now, mark = self._now(), read_mark(metadata.annotations)
        requested_seconds = self._requests.seconds_since_first(pod_uid, remember=False)
        holds = self._preemptions.holds_of_pod(metadata.namespace, pod_uid)
        decision = decide(pod_uid, mark, holds, now, requested_seconds=requested_seconds)
        stays = decision.word == KEPT
        wanted = mark is not None and mark.is_fresh(now)
        return ProtectedPodState(
            may_go=decision.refused is None,
            stays=stays,
            saving=not stays and (wanted or decision.word in {"held", "past-deadline", "released"}),
            unsaved_seconds=self._seconds_lost(pod, now),
        )

    def record_eviction_request(self, pod_uid: str, by: EvictionRequester) -> None:
        """See `ProtectedPodStates`."""
        pod = self._by_uid.unique_object_of(pod_uid)
        if pod is not None and pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None:
            self._requests.seconds_since_first(pod_uid)
            self._marker.enqueue_mark(pod.metadata, f"volcano extender, {by.way} for {by.job}")

    def free_resources(self, node: str, preemptor: str) -> dict[str, float] | None:
        """See `ProtectedPodStates`."""
        return self._free_resources.free_resources(node, preemptor)

    def _seconds_lost(self, pod: Pod, now: datetime) -> float:
        """Return the work lost if it ends now, its own and that of pods that cannot run without it."""
        if (key := pod_group_key_of(pod)) is None:
            return self._unsaved_seconds(pod, now)
        if (now - self._costs_since).total_seconds() > GANGS_LAST_SECONDS:
            self._costs.clear()
            self._costs_since = now
        mark = read_mark(pod.metadata.annotations)
        kind = (*key, mark is not None and mark.is_fresh(now))  # a marked pod may be evicted alone
        if kind not in self._costs:
            family = self._gangs.family_evicted_with(pod)
            whole = None if family.gang is None else sum(self._unsaved_seconds(one, now) for one in family.pods)
            self._costs[kind] = whole
        cost = self._costs[kind]
        return self._unsaved_seconds(pod, now) if cost is None else cost

    def _unsaved_seconds(self, pod: Pod, now: datetime) -> float:
        """Return the seconds since its newest restorable snapshot of this run, else since its start."""
        began = datetime.fromisoformat(pod.status.start_time) if pod.status.start_time else now
        if (identity := find_identity(pod)) is not None:
            known = self._preemptions.checkpoints_of(identity.namespace, identity.id, identity.index)
            newest = max(known, key=lambda one: one.restorable_generation or 0, default=None)
            if newest is not None and newest.restorable_generation is not None and newest.committed_at is not None:
                began = max(began, utc_datetime_of(newest.committed_at))
        return max(0.0, (now - began).total_seconds())

    def _informers(self) -> tuple[Informer[Any], ...]:
        rooms = self._free_resources
        return self._pods, self._groups, self._checkpoints, self._holds, rooms.nodes, rooms.pods


async def _run_informer_with_retries(informer: Informer[Any]) -> None:
    """Run an informer, with retries while Volcano's kinds are not served."""
    while True:
        try:
            await informer.run()
        except AbsentError as error:
            log.warning("kind not served, trying again", error=error.message, pause_seconds=ABSENT_PAUSE_SECONDS)
        await asyncio.sleep(ABSENT_PAUSE_SECONDS)


if TYPE_CHECKING:

    def _fulfils(pod_states: CachedPodStates) -> ProtectedPodStates:
        return pod_states
