"""The hold of a Job: Kueue evicts it by setting `spec.suspend`, and retries a refusal with growing backoff.

Meanwhile Kueue keeps the quota reserved and the pods running, and a change of the Job (the annotation by which the
adapter releases it) makes Kueue retry within milliseconds. The refusal has no `retryAfterSeconds`: Kueue's worker would
sleep in the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.preemption_hold import PreemptionHold
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.records import HoldStep
from cedana_sched_webhooks.admission import Answer, Refusal, Request
from cedana_sched_webhooks.configuration import Configuration
from cedana_sched_webhooks.holds.first_requests import FirstRequests
from cedana_sched_webhooks.identity import replica_of
from cedana_sched_webhooks.json_patch import escape
from cedana_sched_webhooks.knowledge import Knowledge

UNANNOUNCED_SECONDS: Final = 30.0
"""How long an eviction waits for a PreemptionHold before it proceeds as without us."""


class Eviction(msgspec.Struct, frozen=True):
    """One attempt to suspend a Job. `released` is its annotation, `started_at` the start of the Job's current run."""

    uid: str
    released: str | None
    started_at: str | None


class Verdict(msgspec.Struct, frozen=True):
    """Allowed if `refused` is None; `decision` is a metric label."""

    decision: str
    refused: str | None = None


def decide(eviction: Eviction, holds: tuple[PreemptionHold, ...], *, waited_seconds: float, now: datetime) -> Verdict:
    """Decide whether the Job may be suspended now.

    Args:
        eviction: the attempt.
        holds: all of this Job, also of its earlier runs.
        waited_seconds: since the first attempt to suspend this run.
        now: by the clock that writes deadlines.
    """
    newest = max(holds, key=lambda hold: _age(hold, now), default=None)
    if newest is not None and newest.status.step is HoldStep.HOLDING and (ends_at := newest.ends_at) is not None:
        left = (ends_at - now).total_seconds()
        if eviction.released != newest.metadata.name and left > 0:
            return Verdict("held", _sentence(newest.spec.reason, left))
    if _is_released(eviction, holds, newest):
        return Verdict("released")
    over = newest is not None and newest.status.deadline is not None and not newest.status.taken_back
    if newest is not None and over and _of_this_run(newest, eviction):
        return Verdict("past-deadline" if newest.status.step is HoldStep.HOLDING else "over")
    left = UNANNOUNCED_SECONDS - waited_seconds
    if left > 0:
        return Verdict("not-yet-held", _sentence("the coordinator has not taken the eviction up yet", left))
    return Verdict("nobody-holds")


def _is_released(eviction: Eviction, holds: tuple[PreemptionHold, ...], newest: PreemptionHold | None) -> bool:
    """Whether the annotation names the newest hold, or one that was never created: there was nothing to save."""
    if newest is not None and eviction.released == newest.metadata.name:
        return _of_this_run(newest, eviction)
    return eviction.released is not None and all(eviction.released != hold.metadata.name for hold in holds)


def _age(hold: PreemptionHold, now: datetime) -> tuple[str, str]:
    return hold.dated(hold.metadata.creation_timestamp, now), hold.metadata.resource_version.zfill(20)


def _of_this_run(hold: PreemptionHold, eviction: Eviction) -> bool:
    """Whether the hold was created after the Job's last start; otherwise it belongs to an earlier eviction."""
    return not eviction.started_at or (hold.metadata.creation_timestamp or "") >= eviction.started_at


def _sentence(reason: str, left: float) -> str:
    return f"Held for checkpoint by cedana: {reason}, at most {math.ceil(left)} s more"


class JobHold:
    """Admission handler for suspensions of Jobs.

    Args:
        now: the time of day, by the clock that writes deadlines.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        configuration: Configuration,
        *,
        first_requests: FirstRequests,
        now: Callable[[], datetime],
    ) -> None:
        self._knowledge = knowledge
        self._configuration = configuration
        self._first_requests = first_requests
        self._now = now

    def answer(self, request: Request) -> Answer:
        """Decide whether the Job may change; if so, remove the annotation that released it."""
        job = request.object
        if job is None or not self._is_held(request, job):
            return Answer("not-ours")
        metadata, status = job["metadata"], (request.old_object or {}).get("status") or {}
        released = (metadata.get("annotations") or {}).get(names.RELEASED_HOLD)
        eviction = Eviction(metadata.get("uid", ""), released, status.get("startTime"))
        holds = self._knowledge.holds_of(request.namespace, eviction.uid)
        taken_back = frozenset(hold.metadata.name for hold in holds if hold.status.taken_back)
        key = (eviction.uid, eviction.started_at, taken_back)
        waited = self._first_requests.waited(key, remember=not request.dry_run)
        verdict = decide(eviction, holds, waited_seconds=waited, now=self._now())
        if verdict.refused is not None:
            return Answer(verdict.decision, refusal=Refusal(429, "TooManyRequests", verdict.refused))
        path = f"/metadata/annotations/{escape(names.RELEASED_HOLD)}"
        return Answer(verdict.decision, patch=({"op": "remove", "path": path},) if released is not None else ())

    def _is_held(self, request: Request, job: Object) -> bool:
        """Whether it may be held: suspensions by users never are, nor are Jobs without active pods."""
        before = request.old_object or {}
        return (
            request.user_info.username in self._configuration.kueue_users
            and self._configuration.served.includes(request.namespace)
            and bool(job["spec"].get("suspend"))
            and not (before.get("spec") or {}).get("suspend")
            and bool((before.get("status") or {}).get("active"))
            and _is_protected(job)
        )


def _is_protected(job: Object) -> bool:
    try:
        return replica_of(job["spec"].get("template") or {}) is not None
    except UsageError:  # its pods got a warning, and are not protected
        return False
