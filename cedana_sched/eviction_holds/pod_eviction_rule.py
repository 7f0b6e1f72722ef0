"""The rule for a pod that a scheduler evicts, given its mark and its holds.

The scheduler requests the eviction again, about once a second, until it is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from cedana_sched.eviction_holds.decision import Decision, decide_held_eviction, decide_unheld_eviction
from cedana_sched.eviction_holds.first_requests import FirstRequests
from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.model.objects.eviction_mark import EvictionMark
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep

KEPT: Final = "kept"
"""Decision on a pod that its policy keeps running."""
RELEASE_LASTS: Final = timedelta(seconds=60)
"""A later attempt of a released eviction counts as another eviction."""
KEPT_LONGEST: Final = timedelta(seconds=960)
"""Cap on the backoff of a pod that its policy keeps running: saved again after `RELEASE_LASTS`, twice that, etc."""
LONGEST_SILENCE_SECONDS: Final = 6.0
"""Maximum gap between two requests of one eviction, where only a bound is needed. Shorter than the lifetime of marks,
so that an eviction that is retried after its mark became stale counts as new here, too."""


def decide(
    pod_uid: str,
    mark: EvictionMark | None,
    holds: Iterable[PreemptionHold],
    now: datetime,
    *,
    requested_seconds: float = 0.0,
) -> Decision:
    """Decide whether this pod may be evicted now.

    Args:
        pod_uid: of the pod.
        mark: recorded eviction request of the scheduler.
        holds: all of this pod.
        now: by the clock that writes deadlines.
        requested_seconds: since the first request to this replica, also while the pod was held; the mark may be
            impossible to write.

    However often its holds are cancelled, a continuously retried eviction waits for at most two hold deadlines plus
    `UNANNOUNCED_SECONDS`.
    """
    holds = tuple(holds)
    newest = max(holds, key=lambda hold: hold.comparable_creation_time(hold.spec.creation_time, now), default=None)
    if newest is not None and (ends_at := newest.capped_deadline) is not None:
        if newest.status.step is HoldStep.HOLDING:
            left = (ends_at - now).total_seconds()
            return decide_held_eviction(newest.spec.reason, left) if left > 0 else Decision("past-deadline")
        verdict = newest.status.verdict_on(pod_uid)
        if verdict in {Verdict.COMMITTED, Verdict.EVICT} and _is_release_recent(newest, now):
            return Decision("released")
        if verdict is Verdict.KEEP_RUNNING and (left := _backoff_seconds(pod_uid, newest, holds, now)) > 0:
            again = f"it is saved anew in {math.ceil(left)} s at the earliest"
            return Decision(KEPT, f"Kept running by cedana: it could not be saved, and its policy says so; {again}")
    waited = mark.seconds_requested(now) if mark is not None and mark.is_fresh(now) else 0.0
    return decide_unheld_eviction(_unheld_seconds(pod_uid, max(waited, requested_seconds), holds, now))


def _unheld_seconds(pod_uid: str, waited: float, holds: Iterable[PreemptionHold], now: datetime) -> float:
    """Return the part of `waited` in which the pod was not held; a cancelled hold restarts the count.

    That applies only to an eviction no older than such a hold may become. Any user who may write the pod can have its
    holds cancelled repeatedly, by removing the mark.
    """
    spared = (hold for hold in holds if hold.status.step is not HoldStep.HOLDING and _is_spared(pod_uid, hold))
    newest = max(spared, key=lambda hold: hold.comparable_creation_time(hold.spec.creation_time, now), default=None)
    if newest is None or (deadline := newest.capped_deadline) is None or not newest.spec.creation_time:
        return waited
    if waited > (deadline - datetime.fromisoformat(newest.spec.creation_time)).total_seconds():
        return waited
    released = newest.status.release_time  # during its release the pod could still be held
    over_at = datetime.fromisoformat(released) if released is not None else deadline
    return min(waited, max(0.0, (now - over_at).total_seconds()))


def _is_spared(pod_uid: str, hold: PreemptionHold) -> bool:
    return hold.status.verdict_on(pod_uid) in {None, Verdict.NOT_NEEDED}


def _backoff_seconds(pod_uid: str, newest: PreemptionHold, holds: Iterable[PreemptionHold], now: datetime) -> float:
    """Return the seconds for which the pod is not frozen again: a backoff that grows with each failure.

    Holds are deleted after an hour, and with them the number of failures.
    """
    released, over_at = newest.status.release_time, newest.expires_at
    if released is None:  # the release is in flight
        return RELEASE_LASTS.total_seconds() if over_at is None else (over_at - now).total_seconds()
    times = sum(hold.status.verdict_on(pod_uid) is Verdict.KEEP_RUNNING for hold in holds)
    lasts = min(RELEASE_LASTS * (1 << min(times - 1, 10)), KEPT_LONGEST)
    return (lasts - abs(now - datetime.fromisoformat(released))).total_seconds()  # a release in the future is invalid


def _is_release_recent(hold: PreemptionHold, now: datetime) -> bool:
    released, over_at = hold.status.release_time, hold.expires_at
    if released is None:  # the release is in flight
        return over_at is None or now < over_at
    return abs(now - datetime.fromisoformat(released)) < RELEASE_LASTS  # a release in the future is invalid


def eviction_request_tracker(clock: Callable[[], float]) -> FirstRequests:
    """Return the tracker of each pod's eviction requests: a bound, so its entries do not expire by age.

    Args:
        clock: monotonic seconds.
    """
    return FirstRequests(clock, kept_seconds=math.inf, longest_gap_seconds=LONGEST_SILENCE_SECONDS)
