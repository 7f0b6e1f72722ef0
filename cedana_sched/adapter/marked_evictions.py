"""Reports evictions of single pods, for schedulers that write a condition on a pod, then delete the pod.

The webhook refuses that write while a PreemptionHold of the pod is active, and marks the pod meanwhile (see
`model.objects.eviction_mark`). The mark is the signal, and a release needs no call: the scheduler's next attempt is
admitted. A scheduler may change its decision at any time, also after the release; then its mark becomes stale and is
removed, and the preemption is cancelled, in this order: the cache may be stale, and a preemption cancelled while the
scheduler still retries would evict an unsaved pod. A mark that cannot be removed cancels nothing (see `mark_removal`).

An eviction that bypassed the webhook appears as a deletion. The pod's preStop hook is the fallback: it waits for the
agent.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from weakref import WeakValueDictionary

import msgspec
import structlog

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report
from cedana_sched.adapter.mark_removal import MarkRemoval, fresh_mark, is_running
from cedana_sched.adapter.protected_pods import build_victim
from cedana_sched.adapter.report_fanout import ReportFanout
from cedana_sched.kube.builtin_kinds import PREEMPTION, Pod
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched.model.preemption import Release, Signal, Verdict, Victim

log = structlog.get_logger(__name__)

NOT_WANTED = "the scheduler no longer wants it"
"""Why a preemption is cancelled once its marks are stale or removed."""
ANEW_AT_MOST, ANEW_SECONDS = 3, 20.0
"""At most this many cancelled signals of a family in that time. A scheduler that changes its decision is slower,
because its marks must become stale; any user with write access to the pod can toggle marks, at the cost of two objects
each time."""


class Family(msgspec.Struct, frozen=True):
    """Pods evicted together: a gang that cannot run without any of them, or a single pod."""

    uid: str
    """Uid of the gang, or of the pod."""
    pods: tuple[Pod, ...]
    """Its members."""
    gang: str | None = None
    """Uid of the gang; None for a single pod."""


def single_pod_family(pod: Pod) -> Family:
    """Return a family of one pod."""
    return Family(pod.metadata.uid, (pod,))


class MarkedEvictions:
    """Turns the marks on one scheduler's pods into reports. Run `run` as a task.

    All state can be rebuilt: marks stay on their pods.

    Args:
        adapter: the name in records.
        cluster: the coordinator's shared clients and caches.
        concerns: whether a protected pod is this scheduler's.
        family_of: the pods that are evicted with a pod.
        now: the current time.
    """

    def __init__(
        self,
        adapter: str,
        cluster: ClusterAccess,
        *,
        concerns: Callable[[Pod], bool],
        family_of: Callable[[Pod], Family] = single_pod_family,
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._adapter = adapter
        self._cluster = cluster
        self._concerns = concerns
        self._family_of = family_of
        self._now = now
        self._removal = MarkRemoval(cluster.api, now)
        self._reported: dict[str, Signal] = {}
        """By uid of the family: signals neither finished nor cancelled."""
        self._family_of_victim: dict[str, str] = {}
        self._saved: dict[str, frozenset[str]] = {}
        """By uid of the family: pods that are evicted because they are saved. Absent before the release."""
        self._torn: dict[str, Signal] = {}
        """By uid of the pod: evictions that bypassed the webhook."""
        self._let_go: set[str] = set()
        """Uids of pods whose deletion follows from a release."""
        self.synced = asyncio.Event()
        """Set once pending signals are known and can be released."""
        self._readers: ReportFanout[Report] = ReportFanout()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._withdrawals: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By uid of the family: serializes withdrawals, which would otherwise see each other's changes."""
        self._cancelled: deque[tuple[float, str]] = deque()
        """Loop time and family uid of each cancellation."""
        self._cancelled_often: Counter[str] = Counter()
        self._withdrawing = WorkQueue("withdrawal of an eviction", self._cancel_unrequested_eviction)

    async def run(self) -> None:
        """Watch the pods, forever."""
        pods = self._cluster.pods
        await pods.synced.wait()
        pods.subscribe(self._on_pod_change)
        try:
            for pod in pods:
                self._on_pod_change(None, pod)
            self.synced.set()
            await self._withdrawing.run()
        finally:
            pods.unsubscribe(self._on_pod_change)
            for timer in self._timers.values():
                timer.cancel()

    async def reports(self) -> AsyncIterator[Report]:
        """Yield pending signals, then new reports, until the reader is closed."""
        with self.subscribed_queue() as queue:
            while True:
                yield await queue.get()

    def subscribed_queue(
        self, queue: asyncio.Queue[Report] | None = None
    ) -> AbstractContextManager[asyncio.Queue[Report]]:
        """Return a block in which the queue (None: a new one) gets the pending signals, then new reports."""
        signals = (*self._reported.values(), *self._torn.values())
        return self._readers.subscribed_queue(map(Preempted, signals), queue)

    async def on_released(self, release: Release) -> bool:
        """Release the scheduler's next attempt; spare a victim whose preemption was withdrawn too late.

        Unsaved members of a gang stay, unless the scheduler evicts them. Must not run before `synced`.

        Returns:
            Whether the adapter must evict the rest of a gang; False for a single pod, which the scheduler itself
            evicts.

        Raises:
            RetryableError: whether the scheduler still requests the eviction is unknown.
        """
        is_gang = len(release.verdicts) > 1
        self._removal.on_released(release.signal_uid)
        committed = frozenset(uid for uid, verdict in release.verdicts.items() if verdict is Verdict.COMMITTED)
        family = next((uid for uid, signal in self._reported.items() if signal.uid == release.signal_uid), None)
        if family is not None:
            self._saved[family] = committed
            await self._cancel_unrequested_eviction(family)
            reported = self._reported.get(family)
            if not is_gang or reported is None or reported.uid != release.signal_uid:
                return False  # the scheduler evicts, or has a new request
            if self._removal.is_in_doubt(reported.uid):
                raise RetryableError("whether a gang is evicted after all does not show yet", remedy="look again")
            return True
        if not (is_gang and self._has_evicted_victim(release)):
            await self._cancel_late_evictions(release.signal_uid, committed - self._family_of_victim.keys())
            is_gang = False
        self._removal.forget_signal(release.signal_uid)
        return is_gang

    async def _cancel_late_evictions(self, signal_uid: str, committed: frozenset[str]) -> None:
        """Cancel evictions no longer requested of pods saved too late, or while no reader was connected.

        Raises:
            RetryableError: whether the scheduler still requests the eviction is unknown.
        """
        found = map(self._cluster.pods_by_uid.unique_object_of, sorted(committed))
        spared = [pod for pod in found if pod is not None and is_running(pod)]
        if spared:
            if await self._removal.remove_stale_marks(signal_uid, spared) > 0:
                raise RetryableError("a pod that is not evicted after all has changed", remedy="look again")
            self._publish_report(PreemptionCancelled(signal_uid, NOT_WANTED))

    def _has_evicted_victim(self, release: Release) -> bool:
        """Return whether any victim is already evicted: the scheduler used the release before this call."""
        went = (uid for uid, verdict in release.verdicts.items() if verdict is not Verdict.NOT_NEEDED)
        found = map(self._cluster.pods_by_uid.unique_object_of, went)
        return any(pod is None or pod.metadata.deletion_timestamp is not None for pod in found)

    def _on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        pod = now or before
        if pod is None or not self._concerns(pod):
            return
        if (known := self._family_of_victim.get(pod.metadata.uid)) is not None:
            if now is not None and now.ended_by_itself:
                self._drop_ended_victim(known, pod.metadata.uid)
            self._review_family(known)
        elif now is None or now.finished:
            self._torn.pop(pod.metadata.uid, None)
            self._let_go.discard(pod.metadata.uid)
        elif now.metadata.deletion_timestamp is not None:
            self._review_deletion(now)
        elif fresh_mark(now, self._now()) is not None:
            self._review_family(self._family_of(now).uid, now)

    def _review_family(self, uid: str, pod: Pod | None = None) -> None:
        if uid not in self._reported and pod is not None and not self._has_frequent_cancellations(uid):
            self._report_new_signal(uid, self._family_of(pod))
        if (reported := self._reported.get(uid)) is not None and self._update_signal(uid, reported):
            self._withdrawing.add(uid)

    def _report_new_signal(self, uid: str, family: Family) -> None:
        if (signal := self._new_signal_for(family)) is not None:
            self._reported[uid] = signal
            self._family_of_victim |= {victim.workload.uid: uid for victim in signal.victims}
            self._publish_report(Preempted(signal))

    def _review_deletion(self, pod: Pod) -> None:
        """Report an eviction that bypassed the webhook: the preStop hook holds the pod for its grace period."""
        uid = pod.metadata.uid
        if uid in self._torn or uid in self._let_go or pod.status.phase != "Running" or not pod.is_evicted:
            return
        if (victim := self._build_victim(pod, single_pod_family(pod))) is not None:
            signal = self._build_signal(
                f"{uid}@{pod.metadata.deletion_timestamp}", (victim,), pod.metadata.deletion_deadline
            )
            self._torn[uid] = signal
            self._publish_report(Preempted(signal))

    def _update_signal(self, uid: str, signal: Signal) -> bool:
        """Drop a finished signal, or schedule the next check of its marks; return whether to withdraw the signal."""
        left = self._victims_not_deleted(signal)
        goes_on = self._is_rest_evicted_too(uid, signal, left)
        seconds = self._seconds_left(left)
        if left and not goes_on and seconds <= 0:
            return True
        self._removal.on_eviction_requested(signal.uid)
        if not left:
            self._drop_signal(uid)
        elif not goes_on:
            self._schedule_review(uid, seconds)
        return False

    async def _cancel_unrequested_eviction(self, uid: str) -> None:
        """Cancel an eviction no longer requested; marks are removed first, so that a later request writes a new mark.

        Raises:
            RetryableError: whether the scheduler still requests the eviction is unknown.
        """
        async with self._withdrawals.setdefault(uid, asyncio.Lock()):
            signal = self._reported.get(uid)
            if signal is None or not self._update_signal(uid, signal):
                return
            if (pause := await self._removal.remove_stale_marks(signal.uid, self._victims_not_deleted(signal))) > 0:
                self._schedule_review(uid, pause)
            elif (reported := self._reported.get(uid)) is not None and reported.uid == signal.uid:
                self._cancel(uid, reported)

    def _cancel(self, uid: str, signal: Signal) -> None:
        left = self._victims_not_deleted(signal)
        over = len(left) < len(signal.victims) and uid in self._saved
        self._drop_signal(uid)
        self._cancelled.append((asyncio.get_running_loop().time(), uid))
        self._cancelled_often[uid] += 1
        if left and not over:  # otherwise it would spare pods that are being deleted
            self._publish_report(PreemptionCancelled(signal.uid, NOT_WANTED))
        for pod in left:
            if fresh_mark(pod, self._now()) is not None:
                self._review_family(self._family_of(pod).uid, pod)

    def _has_frequent_cancellations(self, uid: str) -> bool:
        """Return whether the family was cancelled so often recently that a new request must persist first."""
        then = asyncio.get_running_loop().time() - ANEW_SECONDS
        while self._cancelled and self._cancelled[0][0] <= then:
            _, earlier = self._cancelled.popleft()
            self._cancelled_often[earlier] -= 1
            if not self._cancelled_often[earlier]:
                del self._cancelled_often[earlier]
        return self._cancelled_often[uid] >= ANEW_AT_MOST

    def _is_rest_evicted_too(self, uid: str, signal: Signal, left: Sequence[Pod]) -> bool:
        """Return whether the rest of a partly deleted gang is evicted too: after the release, only if one was saved."""
        if len(left) == len(signal.victims) or any(victim.gang is None for victim in signal.victims):
            return False
        saved = self._saved.get(uid)
        return saved is None or any(pod.metadata.uid in saved for pod in left)

    def _drop_ended_victim(self, uid: str, pod_uid: str) -> None:
        """Drop a pod that ended by itself; before the release its end is no evidence about the remaining victims."""
        if uid not in self._saved:
            signal = self._reported[uid]
            left = tuple(victim for victim in signal.victims if victim.workload.uid != pod_uid)
            self._reported[uid] = msgspec.structs.replace(signal, victims=left)
            del self._family_of_victim[pod_uid]

    def _schedule_review(self, uid: str, seconds: float) -> None:
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()
        self._timers[uid] = asyncio.get_running_loop().call_later(seconds, self._review_family, uid)

    def _drop_signal(self, uid: str) -> None:
        self._saved.pop(uid, None)
        if (signal := self._reported.pop(uid, None)) is not None:
            self._removal.forget_signal(signal.uid)
            self._let_go |= {
                pod.metadata.uid for pod in self._unfinished_victim_pods_of(signal) if pod.metadata.deletion_timestamp
            }
            for victim in signal.victims:
                self._family_of_victim.pop(victim.workload.uid, None)
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()

    def _publish_report(self, report: Report) -> None:
        self._readers.publish(report)

    def _new_signal_for(self, family: Family) -> Signal | None:
        now = self._now()
        pods = [pod for pod in family.pods if pod.metadata.uid not in self._family_of_victim]
        marks = [mark for pod in pods if (mark := fresh_mark(pod, now)) is not None]
        victims = tuple(self._build_victim(pod, family) for pod in pods if is_running(pod))
        known = tuple(victim for victim in victims if victim is not None)
        if not marks or not known:
            return None
        first = min(marks, key=lambda mark: mark.since)
        return self._build_signal(f"{family.uid}@{first.since}", known)

    def _build_signal(self, uid: str, victims: tuple[Victim, ...], not_after: float | None = None) -> Signal:
        observed_at = self._now().timestamp()
        return Signal(uid, self._adapter, victims, PREEMPTION, observed_at, not_after=not_after)

    def _build_victim(self, pod: Pod, family: Family) -> Victim | None:
        return build_victim(pod, self._cluster.policies, family.gang)

    def _unfinished_victim_pods_of(self, signal: Signal) -> Iterable[Pod]:
        for victim in signal.victims:
            pod = self._cluster.pods.get(victim.workload.name, victim.workload.namespace)
            if pod is not None and pod.metadata.uid == victim.workload.uid and not pod.finished:
                yield pod

    def _victims_not_deleted(self, signal: Signal) -> list[Pod]:
        return [pod for pod in self._unfinished_victim_pods_of(signal) if pod.metadata.deletion_timestamp is None]

    def _seconds_left(self, pods: Iterable[Pod]) -> float:
        """Return seconds until the last mark on the pods is stale."""
        now = self._now()
        return max(
            (mark.seconds_left(now) for pod in pods if (mark := read_mark(pod.metadata.annotations))), default=0.0
        )
