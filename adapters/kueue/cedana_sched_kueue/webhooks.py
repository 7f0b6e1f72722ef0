"""Kueue's part of the webhooks: the hold of the writes by which it evicts Jobs, objects of other kinds, and pods.

A refusal has no `retryAfterSeconds`: Kueue's worker would sleep in the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, Self, TypedDict

import msgspec

from cedana_sched.adapter.settings import read_section
from cedana_sched.eviction_holds.decision import Decision
from cedana_sched.eviction_holds.first_requests import FirstRequests
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import UserWritten
from cedana_sched_kueue.managed_kinds import has_identity, read_suspended
from cedana_sched_kueue.suspension_decision import Suspension, decide_suspension
from cedana_sched_webhooks.admission import Answer, Refusal, Request, Shape
from cedana_sched_webhooks.admission_types import Metadata, Template, find_true_condition
from cedana_sched_webhooks.identity import replica_of
from cedana_sched_webhooks.json_patch import escape_pointer_segment
from cedana_sched_webhooks.schedulers import Endpoint, Handler, ReplicaAccess, SchedulerWebhooks

JOBS: Final = "/mutate/jobs"
"""Without the adapter's name: the webhook's name follows from it, and is `jobs` in installed configurations."""
OBJECTS: Final = "/kueue/objects"
"""Objects of the other kinds that Kueue suspends."""
PODS: Final = "/kueue/pods"
"""Statuses of pods, which Kueue stops one by one where there is nothing to suspend."""
_NOTED: Final = "%Y-%m-%dT%H:%M:%SZ"
STOPPED: Final = "TerminationTarget"
"""Condition that Kueue writes on a pod before it deletes it (pkg/controller/jobs/pod, `Stop`)."""
EVICTED_REASON: Final = "WorkloadEvicted"
"""How its reason begins for an eviction; Kueue also stops pods whose Workload was deleted, or does not match."""


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


class _Object(TypedDict, total=False):
    metadata: Metadata | None
    spec: msgspec.Raw


OBJECT: Final = Shape(_Object, _Object, large=(_Object, _Object))
"""An object of any kind at UPDATE, by Kueue only. Its spec stays text: each kind nests its templates elsewhere."""


class _Condition(TypedDict, total=False):
    type: str | None
    status: str | None
    reason: str | None


class _PodStatus(TypedDict, total=False):
    phase: str | None
    conditions: list[_Condition] | None


class _StoppedPodMetadata(TypedDict, total=False):
    uid: str | None
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    deletionTimestamp: str | None


class _StoppedPod(TypedDict, total=False):
    metadata: _StoppedPodMetadata | None
    status: _PodStatus | None


POD: Final = Shape(_StoppedPod, _StoppedPod, large=(_StoppedPod, _StoppedPod))
"""A pod at UPDATE of its status, by Kueue only."""
_NO_SPEC: Final = msgspec.Raw(b"{}")


class Settings(UserWritten):
    """The section `kueue` of the adapters' settings in the webhooks' file."""

    users: frozenset[str] = frozenset({"system:serviceaccount:kueue-system:kueue-controller-manager"})
    """Users whose suspensions are held; suspensions by others never are."""


class KueueWebhooks(SchedulerWebhooks):
    """Needs no cache of its own: the replica shares its PreemptionHolds.

    Args:
        clock: monotonic seconds.
    """

    name: ClassVar[str] = "kueue"

    def __init__(self, replica: ReplicaAccess, clock: Callable[[], float] = time.monotonic) -> None:
        self._replica = replica
        self._users = read_section(self.name, Settings, replica.settings).users
        self._first_requests = FirstRequests(clock)

    @classmethod
    def connect(cls, replica: ReplicaAccess) -> Self:
        """See `SchedulerWebhooks`."""
        return cls(replica)

    def handlers(self) -> Mapping[str, Handler]:
        """See `SchedulerWebhooks`."""
        return {
            JOBS: Endpoint(self._answer_job_admission, JOB),
            OBJECTS: Endpoint(self._answer_object_admission, OBJECT),
            PODS: Endpoint(self._answer_pod_admission, POD),
        }

    async def _answer_job_admission(self, request: Request) -> Answer:
        """Decide whether the Job may change; if so, remove the annotation that released it."""
        job = request.object
        if job is None or not self._is_holdable_suspension(request, job):
            return Answer("not-ours")
        metadata, status = job["metadata"], (request.old_object or {}).get("status") or {}
        holds = self._replica.preemptions.holds_of(request.namespace, metadata.get("uid", ""))
        decision = self._decide(request, metadata, holds, status.get("startTime"))
        if decision.refused is not None:
            return Answer(decision.word, refusal=Refusal(429, "TooManyRequests", decision.refused))
        return Answer(decision.word, patch=_removal_of_release(metadata))

    async def _answer_object_admission(self, request: Request) -> Answer:
        """Decide whether an object may be suspended; if so, remove the annotation that released it, and note when.

        Kinds other than Job say variously, or not at all, since when their object runs.
        """
        now, before = request.object, request.old_object
        if now is None or before is None or not self._is_holdable_object_suspension(request, now, before):
            return Answer("not-ours")
        metadata = now["metadata"]
        holds = self._replica.preemptions.holds_of(request.namespace, metadata.get("uid", ""))
        decision = self._decide(request, metadata, holds, _noted_suspension(metadata, self._replica.now()))
        if decision.refused is not None:
            return Answer(decision.word, refusal=Refusal(429, "TooManyRequests", decision.refused))
        return Answer(
            decision.word, patch=(*_removal_of_release(metadata), *_note_of_suspension(metadata, self._replica.now()))
        )

    async def _answer_pod_admission(self, request: Request) -> Answer:
        """Decide whether Kueue may stop a pod; a pod has one run, so nothing is noted on it."""
        now, before = request.object, request.old_object
        if now is None or before is None or not self._is_holdable_stop(request, now, before):
            return Answer("not-ours")
        metadata = before["metadata"]
        holds = self._replica.preemptions.holds_of_pod(request.namespace, metadata.get("uid", ""))
        decision = self._decide(request, metadata, holds, None)
        if decision.refused is not None:
            return Answer(decision.word, refusal=Refusal(429, "TooManyRequests", decision.refused))
        return Answer(decision.word)

    def _decide(
        self, request: Request, metadata: Object, holds: tuple[PreemptionHold, ...], started_at: str | None
    ) -> Decision:
        released = (metadata.get("annotations") or {}).get(names.RELEASED_HOLD)
        suspension = Suspension(metadata.get("uid", ""), released, started_at)
        taken_back = frozenset(hold.metadata.name for hold in holds if hold.status.is_cancelled)
        key = (suspension.uid, suspension.started_at, taken_back)
        waited = self._first_requests.seconds_since_first(key, remember=not request.dry_run)
        return decide_suspension(suspension, holds, waited_seconds=waited, now=self._replica.now())

    def _is_holdable_stop(self, request: Request, now: Object, before: Object) -> bool:
        """Whether it may be held: an eviction by Kueue of a running, protected pod that is not being deleted."""
        metadata = before["metadata"]
        return (
            request.user_info.username in self._users
            and self._replica.served.includes(request.namespace)
            and (metadata.get("labels") or {}).get(names.PROTECTED) == "true"
            and not metadata.get("deletionTimestamp")
            and (before.get("status") or {}).get("phase") == "Running"
            and not _is_stopped(before)
            and _is_stopped(now)
        )

    def _is_holdable_object_suspension(self, request: Request, now: Object, before: Object) -> bool:
        """Whether it may be held: Kueue takes the ids that it has put into the templates out again as it suspends."""
        specs = [one.get("spec") or _NO_SPEC for one in (now, before)]
        return (
            request.user_info.username in self._users
            and self._replica.served.includes(request.namespace)
            and read_suspended(specs[0])
            and not read_suspended(specs[1])
            and any(map(has_identity, specs))
        )

    def _is_holdable_suspension(self, request: Request, job: Object) -> bool:
        """Whether it may be held: suspensions by users never are, nor are Jobs without active pods."""
        before = request.old_object or {}
        return (
            request.user_info.username in self._users
            and self._replica.served.includes(request.namespace)
            and bool(job["spec"].get("suspend"))
            and not (before.get("spec") or {}).get("suspend")
            and bool((before.get("status") or {}).get("active"))
            and _is_protected(job)
        )


def _is_stopped(pod: Object) -> bool:
    condition = find_true_condition(pod, STOPPED)
    return condition is not None and (condition.get("reason") or "").startswith(EVICTED_REASON)


def _removal_of_release(metadata: Object) -> tuple[Object, ...]:
    if names.RELEASED_HOLD not in (metadata.get("annotations") or {}):
        return ()
    return ({"op": "remove", "path": _annotation_path(names.RELEASED_HOLD)},)


def _noted_suspension(metadata: Object, now: datetime) -> str | None:
    """Return when the object was last suspended; None if that is not noted, or the note is no time of the past.

    A policy reserves the annotation on objects that exist; an object may be created with any text.
    """
    text = (metadata.get("annotations") or {}).get(names.SUSPENDED_AT) or ""
    try:
        noted = datetime.strptime(text, _NOTED).replace(tzinfo=UTC)
    except ValueError:
        return None
    return text if noted.strftime(_NOTED) == text and noted <= now + timedelta(seconds=2) else None


def _note_of_suspension(metadata: Object, now: datetime) -> tuple[Object, ...]:
    """Return a patch that says when; rounded up, so that all earlier holds are from before."""
    suspended_at = (now + timedelta(seconds=1)).strftime(_NOTED)
    if metadata.get("annotations") is None:
        return ({"op": "add", "path": "/metadata/annotations", "value": {names.SUSPENDED_AT: suspended_at}},)
    return ({"op": "add", "path": _annotation_path(names.SUSPENDED_AT), "value": suspended_at},)


def _annotation_path(key: str) -> str:
    return f"/metadata/annotations/{escape_pointer_segment(key)}"


def _is_protected(job: Object) -> bool:
    try:
        return replica_of(job["spec"].get("template") or {}) is not None
    except UsageError:  # its pods got a warning, and are not protected
        return False
