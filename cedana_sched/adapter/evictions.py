"""Evictions of single pods as reports: for schedulers that write a condition on a pod, then delete it.

The webhook refuses that write while a PreemptionHold of the pod holds, and marks the pod meanwhile (see
`model.objects.eviction_mark`). So the signal is the mark, and the release needs no word: the scheduler's next attempt
goes through. A scheduler may think otherwise at any time, also after the release; its mark grows stale then, is
removed, and the preemption is cancelled. In this order: a cache may be behind, and what is cancelled although the
scheduler goes on asking would be evicted unsaved. A mark that cannot be removed cancels nothing (see `mark_removal`).

An eviction that the webhook has missed shows as a deletion. The pod's preStop is the net below: it waits for the agent.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from weakref import WeakValueDictionary

import msgspec
import structlog

from cedana_sched.adapter.cluster import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled
from cedana_sched.adapter.mark_removal import MarkRemoval, fresh_mark, is_running
from cedana_sched.adapter.pods import identity_of, workload_of
from cedana_sched.adapter.readers import Readers
from cedana_sched.kube.objects import PREEMPTION, Pod
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.errors import RetryableError, UsageError
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched.model.preemption import Release, Signal, Verdict, Victim

log = structlog.get_logger(__name__)

Report = Preempted | PreemptionCancelled
NOT_ASKED = "the scheduler does not ask for it any more"
ANEW_AT_MOST, ANEW_SECONDS = 3, 20.0
"""So often in that time one is taken up. A scheduler that changes its mind cannot do it more often than its marks grow
stale; whoever may write to the pod can remove and write them as he likes, and each time costs two objects."""


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
        self._removal = MarkRemoval(cluster.api, now)
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
        self._readers: Readers[Report] = Readers()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._withdrawals: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By uid of the family: one at a time, which else would find each other's changes."""
        self._cancelled: deque[tuple[float, str]] = deque()
        """When (the loop's time), and the uid of the family."""
        self._cancelled_often: Counter[str] = Counter()
        self._withdrawing = WorkQueue("withdrawal of an eviction", self._withdraw)

    async def run(self) -> None:
        """Follow the pods, for ever."""
        pods = self._cluster.pods
        await pods.synced.wait()
        pods.subscribe(self._heard)
        try:
            for pod in pods:
                self._heard(None, pod)
            self.synced.set()
            await self._withdrawing.run()
        finally:
            pods.unsubscribe(self._heard)
            for timer in self._timers.values():
                timer.cancel()

    async def reports(self) -> AsyncIterator[Report]:
        """What is pending, then what happens, until the reader goes away."""
        signals = (*self._told.values(), *self._torn.values())
        with self._readers.reading(map(Preempted, signals)) as queue:
            while True:
                yield await queue.get()

    async def released(self, release: Release) -> bool:
        """The scheduler's next attempt goes through. A victim whose preemption was taken back too late is spared.

        Of a gang those that are not saved stay, unless the scheduler takes them. Not before `synced`.

        Returns:
            Whether what is left of a gang is to go; False for a pod alone, whom the scheduler itself takes.

        Raises:
            RetryableError: whether the scheduler still asks cannot be settled now.
        """
        is_gang = len(release.verdicts) > 1
        self._removal.released(release.signal_uid)
        committed = frozenset(uid for uid, verdict in release.verdicts.items() if verdict is Verdict.COMMITTED)
        family = next((uid for uid, signal in self._told.items() if signal.uid == release.signal_uid), None)
        if family is not None:
            self._saved[family] = committed
            await self._withdraw(family)
            told = self._told.get(family)
            if not is_gang or told is None or told.uid != release.signal_uid:  # the scheduler takes it, or asks anew
                return False
            if self._removal.is_in_doubt(told.uid):
                raise RetryableError("whether a gang is evicted after all does not show yet", remedy="look again")
            return True
        if not (is_gang and self._is_under_way(release)):
            await self._spare(release.signal_uid, committed - self._family_of_victim.keys())
            is_gang = False
        self._removal.forget(release.signal_uid)
        return is_gang

    async def _spare(self, signal_uid: str, committed: frozenset[str]) -> None:
        """Take back what nobody asks for who was saved too late, or while nobody listened.

        Raises:
            RetryableError: whether the scheduler still asks cannot be settled now.
        """
        spared = [pod for pod in self._cluster.pods if pod.metadata.uid in committed and is_running(pod)]
        if spared:
            if await self._removal.settle(signal_uid, spared) > 0:
                raise RetryableError("a pod that is not evicted after all has changed", remedy="look again")
            self._report(PreemptionCancelled(signal_uid, NOT_ASKED))

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
            self._review_deletion(now)
        elif fresh_mark(now, self._now()) is not None:
            self._review(self._family_of(now).uid, now)

    def _review(self, uid: str, pod: Pod | None = None) -> None:
        if uid not in self._told and pod is not None and not self._is_fickle(uid):
            self._take_up(uid, self._family_of(pod))
        if (told := self._told.get(uid)) is not None and self._update(uid, told):
            self._withdrawing.add(uid)

    def _take_up(self, uid: str, family: Family) -> None:
        if (signal := self._begun(family)) is not None:
            self._told[uid] = signal
            self._family_of_victim |= {victim.workload.uid: uid for victim in signal.victims}
            self._report(Preempted(signal))

    def _review_deletion(self, pod: Pod) -> None:
        """An eviction that went past the webhook: its preStop holds the pod, as long as its grace lasts."""
        uid = pod.metadata.uid
        if uid in self._torn or uid in self._let_go or pod.status.phase != "Running" or not pod.is_evicted:
            return
        if (victim := self._victim(pod, alone(pod))) is not None:
            signal = self._signal(f"{uid}@{pod.metadata.deletion_timestamp}", (victim,), pod.metadata.ends_at)
            self._torn[uid] = signal
            self._report(Preempted(signal))

    def _update(self, uid: str, signal: Signal) -> bool:
        """Forget it, or look again later, as the marks of those that are left say; True: it is to be withdrawn."""
        left = self._left(signal)
        goes_on = self._goes_on(uid, signal, left)
        seconds = self._seconds_left(left)
        if left and not goes_on and seconds <= 0:
            return True
        self._removal.asked(signal.uid)
        if not left:
            self._forget(uid)
        elif not goes_on:
            self._look_again(uid, seconds)
        return False

    async def _withdraw(self, uid: str) -> None:
        """Cancel what the scheduler asks for no more, its marks first: whoever it asks for after that is marked anew.

        Raises:
            RetryableError: whether the scheduler asks cannot be settled now.
        """
        async with self._withdrawals.setdefault(uid, asyncio.Lock()):
            signal = self._told.get(uid)
            if signal is None or not self._update(uid, signal):
                return
            if (pause := await self._removal.settle(signal.uid, self._left(signal))) > 0:
                self._look_again(uid, pause)
            elif (told := self._told.get(uid)) is not None and told.uid == signal.uid:
                self._cancel(uid, told)

    def _cancel(self, uid: str, signal: Signal) -> None:
        left = self._left(signal)
        over = len(left) < len(signal.victims) and uid in self._saved
        self._forget(uid)
        self._cancelled.append((asyncio.get_running_loop().time(), uid))
        self._cancelled_often[uid] += 1
        if left and not over:  # else it would spare those that are just going
            self._report(PreemptionCancelled(signal.uid, NOT_ASKED))
        for pod in left:
            if fresh_mark(pod, self._now()) is not None:
                self._review(self._family_of(pod).uid, pod)

    def _is_fickle(self, uid: str) -> bool:
        """Whether it was cancelled so often of late that it is taken up only if it is still asked for later."""
        then = asyncio.get_running_loop().time() - ANEW_SECONDS
        while self._cancelled and self._cancelled[0][0] <= then:
            _, earlier = self._cancelled.popleft()
            self._cancelled_often[earlier] -= 1
            if not self._cancelled_often[earlier]:
                del self._cancelled_often[earlier]
        return self._cancelled_often[uid] >= ANEW_AT_MOST

    def _goes_on(self, uid: str, signal: Signal, left: Sequence[Pod]) -> bool:
        """Whether the rest of a gang goes too, of which some are gone: after its release only if one was saved."""
        if len(left) == len(signal.victims) or any(victim.gang is None for victim in signal.victims):
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
            self._removal.forget(signal.uid)
            self._let_go |= {pod.metadata.uid for pod in self._victims(signal) if pod.metadata.deletion_timestamp}
            for victim in signal.victims:
                self._family_of_victim.pop(victim.workload.uid, None)
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()

    def _report(self, report: Report) -> None:
        self._readers.publish(report)

    def _begun(self, family: Family) -> Signal | None:
        now = self._now()
        pods = [pod for pod in family.pods if pod.metadata.uid not in self._family_of_victim]
        marks = [mark for pod in pods if (mark := fresh_mark(pod, now)) is not None]
        victims = tuple(self._victim(pod, family) for pod in pods if is_running(pod))
        known = tuple(victim for victim in victims if victim is not None)
        if not marks or not known:
            return None
        first = min(marks, key=lambda mark: mark.since)
        return self._signal(f"{family.uid}@{first.since}", known)

    def _signal(self, uid: str, victims: tuple[Victim, ...], not_after: float | None = None) -> Signal:
        observed_at = self._now().timestamp()
        return Signal(uid, self._adapter, victims, PREEMPTION, observed_at, not_after=not_after)

    def _victim(self, pod: Pod, family: Family) -> Victim | None:
        metadata = pod.metadata
        try:
            identity = identity_of(pod)
        except (KeyError, UsageError, ValueError) as error:
            log.warning("pod is not saved", namespace=metadata.namespace, pod=metadata.name, problem=str(error))
            return None
        return Victim(
            workload=workload_of(pod),
            identity=identity,
            policy=self._cluster.policies.of(pod),
            gang=family.gang,
            started_at=pod.status.started_at,
        )

    def _victims(self, signal: Signal) -> Iterable[Pod]:
        for victim in signal.victims:
            pod = self._cluster.pods.get(victim.workload.name, victim.workload.namespace)
            if pod is not None and pod.metadata.uid == victim.workload.uid and not pod.finished:
                yield pod

    def _left(self, signal: Signal) -> list[Pod]:
        return [pod for pod in self._victims(signal) if pod.metadata.deletion_timestamp is None]

    def _seconds_left(self, pods: Iterable[Pod]) -> float:
        """Until the last mark on them is stale."""
        now = self._now()
        return max(
            (mark.seconds_left(now) for pod in pods if (mark := read_mark(pod.metadata.annotations))), default=0.0
        )
