"""The hold of a pod: a scheduler evicts it by writing `DisruptionTarget` into its status, then deletes it.

Schedulers abandon the attempt if that write is refused: it has no effect, the pod keeps running, and they retry about
once a second. If the refusal has `retryAfterSeconds`, client-go retries the request, and the scheduler keeps its choice
meanwhile.
Writes of others are not held here: the taint controller's have a handler of their own, and nodes report what has
already happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

import msgspec

from cedana_sched.eviction_holds.decision import NOT_HELD
from cedana_sched.eviction_holds.eviction_persistence import EvictionPersistence
from cedana_sched.eviction_holds.pod_eviction_rule import KEPT, decide, eviction_request_tracker
from cedana_sched.kube.builtin_kinds import DISRUPTED, Metadata
from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched_webhooks.admission import Answer, Refusal, Request
from cedana_sched_webhooks.admission_types import find_true_condition
from cedana_sched_webhooks.caches import AdmissionCaches
from cedana_sched_webhooks.configuration import Configuration
from cedana_sched_webhooks.holds.stale_write_patch import patch_for_stale_write

RETRY_SECONDS: Final = 1


class Marker(Protocol):
    """Records a requested eviction for the coordinator."""

    def enqueue_mark(self, pod: Metadata, by: str) -> None: ...


class PodEvictionHold:
    """Admission handler for pod status writes by which schedulers evict.

    Args:
        now: the time of day, by the clock that writes deadlines.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        caches: AdmissionCaches,
        configuration: Configuration,
        marker: Marker,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._caches = caches
        self._configuration = configuration
        self._marker = marker
        self._persistence = EvictionPersistence(caches, clock)
        self._requests = eviction_request_tracker(clock)
        self._now = now

    def answer(self, request: Request) -> Answer:
        """Decide whether the status may be written now; if not, record the request as a mark on the pod."""
        before = request.old_object
        if before is None or request.object is None or not self._is_holdable_eviction(request, before, request.object):
            return Answer("not-ours")
        pod = msgspec.convert(before["metadata"], Metadata)
        mark, now = read_mark(pod.annotations), self._now()
        requested_seconds = self._requests.seconds_since_first(pod.uid, remember=False)
        holds = self._caches.holds_of_pod(pod.namespace, pod.uid)
        decision = decide(pod.uid, mark, holds, now, requested_seconds=requested_seconds)
        if decision.refused is None:
            return Answer(
                decision.word, patch=() if request.is_large else patch_for_stale_write(before, request.object)
            )
        is_steady = self._persistence.is_steady(pod.uid, mark, now, remember=not request.dry_run)
        # no mark for a kept pod: it would be as old as the refusals once these end, and so would be allowed
        if not request.dry_run and decision.word != KEPT and is_steady:
            self._requests.seconds_since_first(pod.uid)
            self._marker.enqueue_mark(pod, request.user_info.username)
        # client-go's retries would make an unstable choice look persistent
        again = RETRY_SECONDS if is_steady or decision.word != NOT_HELD else None
        return Answer(decision.word, refusal=Refusal(429, "TooManyRequests", decision.refused, again))

    def _is_holdable_eviction(self, request: Request, before: Object, now: Object) -> bool:
        """Whether it may be held: a scheduler's eviction of a running, protected pod that is not being deleted."""
        metadata, status = before["metadata"], before.get("status") or {}
        return (
            request.user_info.username in self._configuration.scheduler_users
            and self._configuration.served_namespaces.includes(request.namespace)
            and (metadata.get("labels") or {}).get(names.PROTECTED) == "true"
            and not metadata.get("deletionTimestamp")
            and status.get("phase") == "Running"
            and not _is_disrupted(before)
            and _is_disrupted(now)
        )


def _is_disrupted(pod: Object) -> bool:
    return find_true_condition(pod, DISRUPTED) is not None
