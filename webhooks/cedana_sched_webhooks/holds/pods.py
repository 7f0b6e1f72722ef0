"""The hold of a pod: a scheduler evicts it by writing `DisruptionTarget` into its status, then deletes it.

Facts: kube-scheduler and Volcano give up the attempt when that write is refused. Nothing of it remains, the pod is not
doomed, and they ask again about once a second. Refused with `retryAfterSeconds`, client-go itself repeats the request,
and Volcano keeps to its choice meanwhile.
Others write the same condition and do not come again (the taint eviction), or report what is done already (nodes): they
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
from cedana_sched_webhooks.objects import PreemptionHold

DISRUPTED: Final = "DisruptionTarget"
KEPT: Final = "kept"
"""The decision on a pod that its policy keeps running."""
NOT_HELD: Final = "not-yet-held"
"""The decision on a pod that the coordinator has not taken up."""
RELEASE_LASTS: Final = timedelta(seconds=60)
"""An eviction that was released and has not come by then is another one when it comes."""
KEPT_LONGEST: Final = timedelta(seconds=960)
"""Whose policy keeps it running is saved anew after a release's time, after twice that, and so on, but not later."""
RETRY_SECONDS: Final = 1
CYCLE_SECONDS: Final = 0.7
"""Evictions that begin within so long are of one decision. Schedulers decide once a second."""
PERSISTENT_SECONDS: Final = 3.0
"""Who is asked for after others, while these are being saved, is asked for so long before it is believed."""
LONGEST_GAP_SECONDS: Final = 2.5
"""Between two requests that are one wish; with two replicas, each of us may see every other one."""
LONGEST_SILENCE_SECONDS: Final = 6.0
"""The same where only a bound is looked for. It is shorter than marks last, so that whoever is asked for anew after his
mark has become stale is asked for anew here, too."""


class Decision(msgspec.Struct, frozen=True):
    """Allowed when `refused` is None; `word` is for the metrics."""

    word: str
    refused: str | None = None


class Marker(Protocol):
    """Tells the coordinator that an eviction is wanted."""

    def asked(self, pod: Metadata, by: str) -> None: ...


def decide(
    pod_uid: str,
    mark: EvictionMark | None,
    holds: Iterable[PreemptionHold],
    now: datetime,
    *,
    told_seconds: float = 0.0,
) -> Decision:
    """Whether this pod may be evicted now.

    Args:
        pod_uid: of the pod.
        mark: what is known of the scheduler's wish.
        holds: all of this pod.
        now: by the clock that deadlines are written with.
        told_seconds: for how long it has been asked for here, also while it was held; it may be that the mark can never
            be written.

    However often its holds are taken back: who is asked for all the time waits for two of their deadlines, and
    `UNANNOUNCED_SECONDS`, at most.
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
    """Of so many seconds those for which it was not held: they count anew when a hold was taken back.

    But only for a wish that is no older than such a hold may become. Whoever may write to the pod can have its holds
    taken back as often as he likes, for he can remove the mark.
    """
    spared = (hold for hold in holds if hold.status.step is not HoldStep.HOLDING and _is_spared(pod_uid, hold))
    newest = max(spared, key=lambda hold: hold.dated(hold.spec.creation_time, now), default=None)
    if newest is None or (deadline := newest.ends_at) is None or not newest.spec.creation_time:
        return waited
    if waited > (deadline - datetime.fromisoformat(newest.spec.creation_time)).total_seconds():
        return waited
    released = newest.status.release_time  # while it is being released, it could still be held
    over_at = datetime.fromisoformat(released) if released is not None else deadline
    return min(waited, max(0.0, (now - over_at).total_seconds()))


def _is_spared(pod_uid: str, hold: PreemptionHold) -> bool:
    return hold.status.verdict_on(pod_uid) in {None, Verdict.NOT_NEEDED}


def _kept_seconds(pod_uid: str, newest: PreemptionHold, holds: Iterable[PreemptionHold], now: datetime) -> float:
    """For how long it is not frozen once more, however often it is asked for: the longer, the more often it failed.

    Holds are forgotten after an hour, and with them how often.
    """
    released, over_at = newest.status.release_time, newest.over_at
    if released is None:  # it is being released
        return RELEASE_LASTS.total_seconds() if over_at is None else (over_at - now).total_seconds()
    times = sum(hold.status.verdict_on(pod_uid) is Verdict.KEEP_RUNNING for hold in holds)
    lasts = min(RELEASE_LASTS * (1 << min(times - 1, 10)), KEPT_LONGEST)
    return (lasts - abs(now - datetime.fromisoformat(released))).total_seconds()  # one of the future is nobody's


def _is_recent(hold: PreemptionHold, now: datetime) -> bool:
    released, over_at = hold.status.release_time, hold.over_at
    if released is None:  # it is being released
        return over_at is None or now < over_at
    return abs(now - datetime.fromisoformat(released)) < RELEASE_LASTS  # one of the future is nobody's


def _sentence(reason: str, left: float) -> str:
    return f"Held for checkpoint by cedana: {reason}, at most {math.ceil(left)} s more"


def wishes(clock: Callable[[], float]) -> FirstRequests:
    """For how long each pod has been asked for: a bound, and so never forgotten by their age.

    Args:
        clock: seconds of a clock that never goes back.
    """
    return FirstRequests(clock, kept_seconds=math.inf, longest_gap_seconds=LONGEST_SILENCE_SECONDS)


class PodHold:
    """Answers the writes of pods' statuses by which schedulers evict.

    Args:
        first_requests: when each wish began; `LONGEST_GAP_SECONDS` end it.
        now: the time of day, as deadlines are written with.
        clock: seconds of a clock that never goes back.
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
        """Whether the status may be written now; if not, the wish is marked on the pod."""
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
        # of who is kept the wish is not marked: it would be as old as the refusals once these end, and let through
        if not request.dry_run and decision.word != KEPT and not is_a_whim:
            self._told.waited(pod.uid)
            self._marker.asked(pod, request.user_info.username)
        # a whim that the client repeated by itself would seem to last
        again = None if is_a_whim and decision.word == NOT_HELD else RETRY_SECONDS
        return Answer(decision.word, refusal=Refusal(429, "TooManyRequests", decision.refused, again))

    def _is_a_whim(self, pod_uid: str, mark: EvictionMark | None, *, remember: bool) -> bool:
        """Whether it is another victim in place of those that are being saved for the same preemptor, most likely.

        A scheduler that is refused chooses anew in each cycle, and not always the same; whom it would not take in the
        end is not to be frozen. A slow scheduler, whose cycles are all gaps, is believed after a while.
        """
        now = self._now()
        waited, doubted = (of.waited(pod_uid, remember=remember) for of in (self._first_requests, self._doubted))
        if mark is not None and mark.is_fresh(now):
            return False
        if waited >= PERSISTENT_SECONDS or doubted >= UNANNOUNCED_SECONDS:
            return False
        return self._knowledge.saves_pods(now, timedelta(seconds=CYCLE_SECONDS))

    def _is_held(self, request: Request, before: Object, now: Object) -> bool:
        """Only schedulers' evictions of protected pods that run, and are not being deleted already."""
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
