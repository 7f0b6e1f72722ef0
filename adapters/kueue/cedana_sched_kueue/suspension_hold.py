"""Admission handler that holds the suspensions by which Kueue evicts Jobs.

A refusal has no `retryAfterSeconds`: Kueue's worker would sleep in the call.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final, TypedDict

from cedana_sched.eviction_holds.first_requests import FirstRequests
from cedana_sched.eviction_holds.preemptions import Preemptions
from cedana_sched.kube.client import Object
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.served import Served
from cedana_sched_kueue.suspensions import Suspension, decide
from cedana_sched_webhooks.admission import Answer, Refusal, Request, Shape
from cedana_sched_webhooks.identity import replica_of
from cedana_sched_webhooks.json_patch import escape
from cedana_sched_webhooks.shapes import Metadata, Template


class _JobSpec(TypedDict, total=False):
    suspend: bool | None
    template: Template | None


class _Job(TypedDict, total=False):
    metadata: Metadata | None
    spec: _JobSpec | None


class _JobSpecBefore(TypedDict, total=False):
    suspend: bool | None


class _JobStatus(TypedDict, total=False):
    active: int | None
    startTime: str | None


class _JobBefore(TypedDict, total=False):
    metadata: Metadata | None
    spec: _JobSpecBefore | None
    status: _JobStatus | None


JOB: Final = Shape(_Job, _JobBefore, large=(_Job, _JobBefore))
"""A Job at UPDATE, by its own controller only, so that no tenant can cause such reviews."""


class SuspensionHold:
    """Admission handler for Jobs at UPDATE.

    Args:
        preemptions: of the cluster.
        users: Kueue's; suspensions by others are never held.
        served: namespaces whose Jobs are held.
        first_requests: start of each eviction.
        now: the time of day, by the clock that writes deadlines.
    """

    def __init__(
        self,
        preemptions: Preemptions,
        users: frozenset[str],
        served: Served,
        *,
        first_requests: FirstRequests,
        now: Callable[[], datetime],
    ) -> None:
        self._preemptions = preemptions
        self._users = users
        self._served = served
        self._first_requests = first_requests
        self._now = now

    async def answer(self, request: Request) -> Answer:
        """Decide whether the Job may change; if so, remove the annotation that released it."""
        job = request.object
        if job is None or not self._is_held(request, job):
            return Answer("not-ours")
        metadata, status = job["metadata"], (request.old_object or {}).get("status") or {}
        released = (metadata.get("annotations") or {}).get(names.RELEASED_HOLD)
        suspension = Suspension(metadata.get("uid", ""), released, status.get("startTime"))
        holds = self._preemptions.holds_of(request.namespace, suspension.uid)
        taken_back = frozenset(hold.metadata.name for hold in holds if hold.status.taken_back)
        key = (suspension.uid, suspension.started_at, taken_back)
        waited = self._first_requests.waited(key, remember=not request.dry_run)
        decision = decide(suspension, holds, waited_seconds=waited, now=self._now())
        if decision.refused is not None:
            return Answer(decision.word, refusal=Refusal(429, "TooManyRequests", decision.refused))
        path = f"/metadata/annotations/{escape(names.RELEASED_HOLD)}"
        return Answer(decision.word, patch=({"op": "remove", "path": path},) if released is not None else ())

    def _is_held(self, request: Request, job: Object) -> bool:
        """Whether it may be held: suspensions by users never are, nor are Jobs without active pods."""
        before = request.old_object or {}
        return (
            request.user_info.username in self._users
            and self._served.includes(request.namespace)
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
