"""The hold of a pod: a scheduler evicts it by writing `DisruptionTarget` into its status, then deletes it.

kube-scheduler and Volcano abandon the attempt if that write is refused: it has no effect, the pod keeps running, and
they retry about once a second. If the refusal has `retryAfterSeconds`, client-go retries the request, and Volcano
keeps its choice meanwhile.
Other writers of the condition do not retry (taint eviction), or report what has already happened (nodes): their writes
are never held.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.own_kinds.preemption_hold import PreemptionHold
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, read_mark
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep
from cedana_sched_webhooks.admission import Answer, Refusal, Request
from cedana_sched_webhooks.configuration import Configuration
from cedana_sched_webhooks.holds.first_requests import FirstRequests
from cedana_sched_webhooks.holds.jobs import UNANNOUNCED_SECONDS
from cedana_sched_webhooks.holds.stale_writes import renewal
from cedana_sched_webhooks.knowledge import Knowledge

DISRUPTED: Final = "DisruptionTarget"
KEPT: Final = "kept"
"""Decision on a pod that its policy keeps running."""
NOT_HELD: Final = "not-yet-held"
"""Decision on a pod without a PreemptionHold."""
RELEASE_LASTS: Final = timedelta(seconds=60)
"""A later attempt of a released eviction counts as another eviction."""
KEPT_LONGEST: Final = timedelta(seconds=960)
"""Cap on the backoff of a pod that its policy keeps running: saved again after `RELEASE_LASTS`, twice that, etc."""
RETRY_SECONDS: Final = 1
CYCLE_SECONDS: Final = 0.7
"""Evictions that begin within this interval belong to one decision. Schedulers decide once a second."""
PERSISTENT_SECONDS: Final = 3.0
"""An eviction that begins while others are being saved must persist for this long before it is marked."""
LONGEST_GAP_SECONDS: Final = 2.5
"""Maximum gap between two requests of one eviction; with two replicas, each may get every other request."""
LONGEST_SILENCE_SECONDS: Final = 6.0
"""The same, where only a bound is needed. Shorter than the lifetime of marks, so that an eviction that is retried after
its mark became stale counts as new here, too."""


class Decision(msgspec.Struct, frozen=True):
    """Allowed if `refused` is None; `word` is a metric label."""

    word: str
    refused: str | None = None


class Marker(Protocol):
    """Records a requested eviction for the coordinator."""

    def asked(self, pod: Metadata, by: str) -> None: ...


def decide(
    pod_uid: str,
    mark: EvictionMark | None,
    holds: Iterable[PreemptionHold],
    now: datetime,
    *,
    told_seconds: float = 0.0,
) -> Decision:
    """Decide whether this pod may be evicted now.

    Args:
        pod_uid: of the pod.
        mark: recorded eviction request of the scheduler.
        holds: all of this pod.
        now: by the clock that writes deadlines.
        told_seconds: since the first request to this replica, also while the pod was held; the mark may be impossible
            to write.

    However often its holds are cancelled, a continuously retried eviction waits for at most two hold deadlines plus
    `UNANNOUNCED_SECONDS`.
    """
    holds = tuple(holds)
    newest = max(holds, key=lambda hold: hold.dated(hold.spec.creation_time, now), default=None)
    if newest is not None and (ends_at := newest.ends_at) is not None:
        if newest.status.step is HoldStep.HOLDING:
            left = (ends_at - now).total_seconds()
            return Decision("held", _sentence(newest.spec.reason, left)) if left > 0 else Decision("past-deadline")
        verdict = newest.status.verdict_on(pod_uid)
        if verdict in {Verdict.COMMITTED, Verdict.EVICT} and _is_recent(newest, now):
            return Decision("released")
        if verdict is Verdict.KEEP_RUNNING and (left := _kept_seconds(pod_uid, newest, holds, now)) > 0:
            again = f"it is saved anew in {math.ceil(left)} s at the earliest"
            return Decision(KEPT, f"Kept running by cedana: it could not be saved, and its policy says so; {again}")
    waited = mark.waited(now) if mark is not None and mark.is_fresh(now) else 0.0
    left = UNANNOUNCED_SECONDS - _unheld(pod_uid, max(waited, told_seconds), holds, now)
    if left > 0:
        return Decision(NOT_HELD, _sentence("the coordinator has not taken the eviction up yet", left))
    return Decision("nobody-holds")


def _unheld(pod_uid: str, waited: float, holds: Iterable[PreemptionHold], now: datetime) -> float:
    """Return the part of `waited` in which the pod was not held; a cancelled hold restarts the count.

    That applies only to an eviction no older than such a hold may become. Any user who may write the pod can have its
    holds cancelled repeatedly, by removing the mark.
    """
    spared = (hold for hold in holds if hold.status.step is not HoldStep.HOLDING and _is_spared(pod_uid, hold))
    newest = max(spared, key=lambda hold: hold.dated(hold.spec.creation_time, now), default=None)
    if newest is None or (deadline := newest.ends_at) is None or not newest.spec.creation_time:
        return waited
    if waited > (deadline - datetime.fromisoformat(newest.spec.creation_time)).total_seconds():
        return waited
    released = newest.status.release_time  # during its release the pod could still be held
    over_at = datetime.fromisoformat(released) if released is not None else deadline
    return min(waited, max(0.0, (now - over_at).total_seconds()))


def _is_spared(pod_uid: str, hold: PreemptionHold) -> bool:
    return hold.status.verdict_on(pod_uid) in {None, Verdict.NOT_NEEDED}


def _kept_seconds(pod_uid: str, newest: PreemptionHold, holds: Iterable[PreemptionHold], now: datetime) -> float:
    """Return the seconds for which the pod is not frozen again: a backoff that grows with each failure.

    Holds are deleted after an hour, and with them the number of failures.
    """
    released, over_at = newest.status.release_time, newest.over_at
    if released is None:  # the release is in flight
        return RELEASE_LASTS.total_seconds() if over_at is None else (over_at - now).total_seconds()
    times = sum(hold.status.verdict_on(pod_uid) is Verdict.KEEP_RUNNING for hold in holds)
    lasts = min(RELEASE_LASTS * (1 << min(times - 1, 10)), KEPT_LONGEST)
    return (lasts - abs(now - datetime.fromisoformat(released))).total_seconds()  # a release in the future is invalid


def _is_recent(hold: PreemptionHold, now: datetime) -> bool:
    released, over_at = hold.status.release_time, hold.over_at
    if released is None:  # the release is in flight
        return over_at is None or now < over_at
    return abs(now - datetime.fromisoformat(released)) < RELEASE_LASTS  # a release in the future is invalid


def _sentence(reason: str, left: float) -> str:
    return f"Held for checkpoint by cedana: {reason}, at most {math.ceil(left)} s more"


def wishes(clock: Callable[[], float]) -> FirstRequests:
    """Return the tracker of each pod's eviction requests: a bound, so its entries do not expire by age.

    Args:
        clock: monotonic seconds.
    """
    return FirstRequests(clock, kept_seconds=math.inf, longest_gap_seconds=LONGEST_SILENCE_SECONDS)


class PodHold:
    """Admission handler for pod status writes by which schedulers evict.

    Args:
        first_requests: start of each eviction; a gap of `LONGEST_GAP_SECONDS` ends it.
        now: the time of day, by the clock that writes deadlines.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        configuration: Configuration,
        marker: Marker,
        *,
        first_requests: FirstRequests,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._knowledge = knowledge
        self._configuration = configuration
        self._marker = marker
        self._first_requests = first_requests
        self._doubted = FirstRequests(clock, longest_gap_seconds=LONGEST_SILENCE_SECONDS)
        self._told = wishes(clock)
        self._now = now

    def answer(self, request: Request) -> Answer:
        """Decide whether the status may be written now; if not, record the request as a mark on the pod."""
        before = request.old_object
        if before is None or request.object is None or not self._is_held(request, before, request.object):
            return Answer("not-ours")
        pod = msgspec.convert(before["metadata"], Metadata)
        mark = read_mark(pod.annotations)
        told = self._told.waited(pod.uid, remember=False)
        decision = decide(
            pod.uid, mark, self._knowledge.holds_of_pod(pod.namespace, pod.uid), self._now(), told_seconds=told
        )
        if decision.refused is None:
            return Answer(decision.word, patch=() if request.is_large else renewal(before, request.object))
        is_a_whim = self._is_a_whim(pod.uid, mark, remember=not request.dry_run)
        # no mark for a kept pod: it would be as old as the refusals once these end, and so would be allowed
        if not request.dry_run and decision.word != KEPT and not is_a_whim:
            self._told.waited(pod.uid)
            self._marker.asked(pod, request.user_info.username)
        # client-go's retries would make an unstable choice look persistent
        again = None if is_a_whim and decision.word == NOT_HELD else RETRY_SECONDS
        return Answer(decision.word, refusal=Refusal(429, "TooManyRequests", decision.refused, again))

    def _is_a_whim(self, pod_uid: str, mark: EvictionMark | None, *, remember: bool) -> bool:
        """Whether this is most likely another victim in place of those being saved for the same preemptor.

        A refused scheduler chooses again in each cycle, not always the same victims; one that it would not choose in
        the end must not be frozen. A slow scheduler, whose cycles exceed the gap, is accepted after
        `UNANNOUNCED_SECONDS`.
        """
        now = self._now()
        waited, doubted = (of.waited(pod_uid, remember=remember) for of in (self._first_requests, self._doubted))
        if mark is not None and mark.is_fresh(now):
            return False
        if waited >= PERSISTENT_SECONDS or doubted >= UNANNOUNCED_SECONDS:
            return False
        return self._knowledge.saves_pods(now, timedelta(seconds=CYCLE_SECONDS))

    def _is_held(self, request: Request, before: Object, now: Object) -> bool:
        """Whether it may be held: a scheduler's eviction of a running, protected pod that is not being deleted."""
        metadata, status = before["metadata"], before.get("status") or {}
        return (
            request.user_info.username in self._configuration.scheduler_users
            and self._configuration.served.includes(request.namespace)
            and (metadata.get("labels") or {}).get(names.PROTECTED) == "true"
            and not metadata.get("deletionTimestamp")
            and status.get("phase") == "Running"
            and not _is_disrupted(before)
            and _is_disrupted(now)
        )


def _is_disrupted(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == DISRUPTED and one.get("status") == "True" for one in conditions)
