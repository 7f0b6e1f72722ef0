"""Evictions of single pods as reports: for schedulers that write a condition on a pod, then delete it.

The webhook refuses that write while a PreemptionHold of the pod holds, and marks the pod meanwhile (see
`model.objects.eviction_mark`). So the signal is the mark, and the release needs no word: the scheduler's next attempt
goes through. A scheduler may think otherwise at any time, also after the release; its mark grows stale then.

An eviction that the webhook has missed shows as a deletion. The pod's preStop is the net below: it waits for the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime

import msgspec
import structlog

from cedana_sched.adapter.cluster import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled
from cedana_sched.adapter.pods import identity_of, workload_of
from cedana_sched.kube.errors import AbsentError, ConflictError
from cedana_sched.kube.objects import PREEMPTION, Pod
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, read_mark
from cedana_sched.model.preemption import Release, Signal, Verdict, Victim

log = structlog.get_logger(__name__)

Report = Preempted | PreemptionCancelled
NOT_ASKED = "the scheduler does not ask for it any more"


class Family(msgspec.Struct, frozen=True):
    """Pods that are evicted together: a gang that could not go on without one of them, or one pod alone."""

    uid: str
    """The gang's own, or the pod's."""
    pods: tuple[Pod, ...]
    gang: str | None = None


def alone(pod: Pod) -> Family:
    """A pod without which no other one ends."""
    return Family(pod.metadata.uid, (pod,))


class MarkedEvictions:
    """Follows the marks of one scheduler's pods. Run `run` as a task.

    What it remembers it can read back: marks stay on their pods.

    Args:
        adapter: the name in records.
        cluster: what the coordinator shares.
        concerns: whether a protected pod is this scheduler's.
        family_of: who goes with a pod.
        now: the time of day.
    """

    def __init__(
        self,
        adapter: str,
        cluster: ClusterAccess,
        *,
        concerns: Callable[[Pod], bool],
        family_of: Callable[[Pod], Family] = alone,
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._adapter = adapter
        self._cluster = cluster
        self._concerns = concerns
        self._family_of = family_of
        self._now = now
        self._told: dict[str, Signal] = {}
        """By uid of the family: what is neither over nor taken back."""
        self._family_of_victim: dict[str, str] = {}
        self._saved: dict[str, frozenset[str]] = {}
        """By uid of the family: its pods that go now, because they are saved. Absent before its release."""
        self._torn: dict[str, Signal] = {}
        """By uid of pods that are being deleted, and that nobody had told us of."""
        self._let_go: set[str] = set()
        """Uids of pods whose deletion follows from a release."""
        self.synced = asyncio.Event()
        """What is pending is known, and can be released."""
        self._readers: list[asyncio.Queue[Report]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unmarking = WorkQueue("removal of an eviction mark", self._unmark)

    async def run(self) -> None:
        """Follow the pods, for ever."""
        pods = self._cluster.pods
        await pods.synced.wait()
        pods.subscribe(self._heard)
        try:
            for pod in pods:
                self._heard(None, pod)
            self.synced.set()
            await self._unmarking.run()
        finally:
            pods.unsubscribe(self._heard)
            for timer in self._timers.values():
                timer.cancel()

    async def reports(self) -> AsyncIterator[Report]:
        """What is pending, then what happens, until the reader goes away."""
        queue: asyncio.Queue[Report] = asyncio.Queue()
        for signal in (*self._told.values(), *self._torn.values()):
            queue.put_nowait(Preempted(signal))
        self._readers.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._readers.remove(queue)

    def released(self, release: Release) -> bool:
        """The scheduler's next attempt goes through. A victim whose preemption was taken back too late is spared.

        Of a gang those that are not saved stay, unless the scheduler takes them. Not before `synced`.

        Returns:
            Whether what is left of a gang is to go; False for a pod alone, whom the scheduler itself takes.
        """
        is_gang = len(release.verdicts) > 1
        committed = frozenset(uid for uid, verdict in release.verdicts.items() if verdict is Verdict.COMMITTED)
        family = next((uid for uid, signal in self._told.items() if signal.uid == release.signal_uid), None)
        if family is not None:
            self._saved[family] = committed
            self._review(family)
            return is_gang and family in self._told
        if is_gang and self._is_under_way(release):
            return True
        if any(pod.metadata.uid in committed and _is_running(pod) for pod in self._cluster.pods):
            self._report(PreemptionCancelled(release.signal_uid, NOT_ASKED))
        return False

    def _is_under_way(self, release: Release) -> bool:
        """Whether any of its victims is evicted: the scheduler has used the release before we could tell."""
        there = {pod.metadata.uid for pod in self._cluster.pods if pod.metadata.deletion_timestamp is None}
        went = (uid for uid, verdict in release.verdicts.items() if verdict is not Verdict.NOT_NEEDED)
        return any(uid not in there for uid in went)

    def _heard(self, before: Pod | None, now: Pod | None) -> None:
        pod = now or before
        if pod is None or not self._concerns(pod):
            return
        if (known := self._family_of_victim.get(pod.metadata.uid)) is not None:
            if now is not None and now.ended_by_itself:
                self._leave(known, pod.metadata.uid)
            self._review(known)
        elif now is None or now.finished:
            self._torn.pop(pod.metadata.uid, None)
            self._let_go.discard(pod.metadata.uid)
        elif now.metadata.deletion_timestamp is not None:
            self._review_deletion(now, now.metadata.deletion_timestamp)
        elif _fresh(now, self._now()) is not None:
            self._review(self._family_of(now).uid, now)

    def _review(self, uid: str, pod: Pod | None = None) -> None:
        if (told := self._told.get(uid)) is not None:
            self._review_told(uid, told)
        elif pod is not None and (signal := self._begun(self._family_of(pod))) is not None:
            self._told[uid] = signal
            self._family_of_victim |= {victim.workload.uid: uid for victim in signal.victims}
            self._report(Preempted(signal))
            self._review_told(uid, signal)

    def _review_deletion(self, pod: Pod, ends_at: str) -> None:
        """An eviction that went past the webhook: its preStop holds the pod, as long as its grace lasts."""
        uid = pod.metadata.uid
        if uid in self._torn or uid in self._let_go or pod.status.phase != "Running" or not pod.is_evicted:
            return
        if (victim := self._victim(pod, alone(pod))) is not None:
            not_after = datetime.fromisoformat(ends_at).timestamp()
            signal = self._signal(f"{uid}@{ends_at}", (victim,), not_after)
            self._torn[uid] = signal
            self._report(Preempted(signal))

    def _review_told(self, uid: str, signal: Signal) -> None:
        """Whether the scheduler still wants it."""
        left = [pod for pod in self._victims(signal) if pod.metadata.deletion_timestamp is None]
        if not left:
            self._forget(uid)
            return
        broken = len(left) < len(signal.victims)
        if broken and self._goes_on(uid, signal, left):
            return
        now = self._now()
        seconds = [mark.seconds_left(now) for pod in left if (mark := read_mark(pod.metadata.annotations))]
        if (longest := max(seconds, default=0.0)) > 0:
            self._look_again(uid, longest)
            return
        over = broken and uid in self._saved
        self._forget(uid)
        if not over:  # else it would spare those that are just going
            self._report(PreemptionCancelled(signal.uid, NOT_ASKED))
        for pod in left:
            self._unmarking.add(pod.metadata.uid)

    def _goes_on(self, uid: str, signal: Signal, left: Iterable[Pod]) -> bool:
        """Whether the rest of a gang goes too, of which some are gone: once it is released, as far as it was saved."""
        if any(victim.gang is None for victim in signal.victims):
            return False
        saved = self._saved.get(uid)
        return saved is None or any(pod.metadata.uid in saved for pod in left)

    def _leave(self, uid: str, pod_uid: str) -> None:
        """Until the release the scheduler may think otherwise of those that are left: this one's end says nothing."""
        if uid not in self._saved:
            signal = self._told[uid]
            left = tuple(victim for victim in signal.victims if victim.workload.uid != pod_uid)
            self._told[uid] = msgspec.structs.replace(signal, victims=left)
            del self._family_of_victim[pod_uid]

    def _look_again(self, uid: str, seconds: float) -> None:
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()
        self._timers[uid] = asyncio.get_running_loop().call_later(seconds, self._review, uid)

    def _forget(self, uid: str) -> None:
        self._saved.pop(uid, None)
        if (signal := self._told.pop(uid, None)) is not None:
            self._let_go |= {pod.metadata.uid for pod in self._victims(signal) if pod.metadata.deletion_timestamp}
            for victim in signal.victims:
                self._family_of_victim.pop(victim.workload.uid, None)
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()

    def _report(self, report: Report) -> None:
        for reader in self._readers:
            reader.put_nowait(report)

    def _begun(self, family: Family) -> Signal | None:
        now = self._now()
        pods = [pod for pod in family.pods if pod.metadata.uid not in self._family_of_victim]
        marks = [mark for pod in pods if (mark := _fresh(pod, now)) is not None]
        victims = tuple(self._victim(pod, family) for pod in pods if _is_running(pod))
        known = tuple(victim for victim in victims if victim is not None)
        if not marks or not known:
            return None
        first = min(marks, key=lambda mark: mark.since)
        return self._signal(f"{family.uid}@{first.since}", known)

    def _signal(self, uid: str, victims: tuple[Victim, ...], not_after: float | None = None) -> Signal:
        observed_at = self._now().timestamp()
        return Signal(uid, self._adapter, victims, PREEMPTION, observed_at, not_after=not_after)

    def _victim(self, pod: Pod, family: Family) -> Victim | None:
        metadata, started = pod.metadata, pod.status.start_time
        try:
            identity = identity_of(pod)
        except (KeyError, UsageError, ValueError) as error:
            log.warning("pod is not saved", namespace=metadata.namespace, pod=metadata.name, problem=str(error))
            return None
        return Victim(
            workload=workload_of(pod),
            identity=identity,
            policy=self._cluster.policies.named(metadata.annotations.get(names.POLICY)),
            gang=family.gang,
            started_at=datetime.fromisoformat(started).timestamp() if started else None,
        )

    def _victims(self, signal: Signal) -> Iterable[Pod]:
        for victim in signal.victims:
            pod = self._cluster.pods.get(victim.workload.name, victim.workload.namespace)
            if pod is not None and pod.metadata.uid == victim.workload.uid and not pod.finished:
                yield pod

    async def _unmark(self, pod_uid: str) -> None:
        """Remove the stale mark, lest it is taken for the next wish."""
        pod = next((one for one in self._cluster.pods if one.metadata.uid == pod_uid), None)
        if pod is None or names.EVICTING not in pod.metadata.annotations or _fresh(pod, self._now()) is not None:
            return
        metadata = pod.metadata
        seen = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        try:
            patch = {"metadata": {**seen, "annotations": {names.EVICTING: None}}}
            await self._cluster.api.patch(PODS, metadata.name, metadata.namespace, patch)
        except (AbsentError, ConflictError):  # it is asked for again, or gone
            return


def _fresh(pod: Pod, now: datetime) -> EvictionMark | None:
    mark = read_mark(pod.metadata.annotations)
    return mark if mark is not None and mark.is_fresh(now) and _is_running(pod) else None


def _is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
