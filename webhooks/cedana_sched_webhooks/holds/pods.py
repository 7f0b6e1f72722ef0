"""The hold of a pod: a scheduler evicts it by writing `DisruptionTarget` into its status, then deletes it.

Schedulers abandon the attempt if that write is refused: it has no effect, the pod keeps running, and they retry about
once a second. If the refusal has `retryAfterSeconds`, client-go retries the request, and the scheduler keeps its choice
meanwhile.
Other writers of the condition do not retry (taint eviction), or report what has already happened (nodes): their writes
are never held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

import msgspec

from cedana_sched.eviction_holds.decision import NOT_HELD
from cedana_sched.eviction_holds.pods import KEPT, decide, wishes
from cedana_sched.eviction_holds.steadiness import Steadiness
from cedana_sched.kube.client import Object
from cedana_sched.kube.objects import Metadata
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched_webhooks.admission import Answer, Refusal, Request
from cedana_sched_webhooks.configuration import Configuration
from cedana_sched_webhooks.holds.stale_writes import renewal
from cedana_sched_webhooks.knowledge import Knowledge

DISRUPTED: Final = "DisruptionTarget"
RETRY_SECONDS: Final = 1


class Marker(Protocol):
    """Records a requested eviction for the coordinator."""

    def asked(self, pod: Metadata, by: str) -> None: ...


class PodHold:
    """Admission handler for pod status writes by which schedulers evict.

    Args:
        now: the time of day, by the clock that writes deadlines.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        configuration: Configuration,
        marker: Marker,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._knowledge = knowledge
        self._configuration = configuration
        self._marker = marker
        self._steadiness = Steadiness(knowledge, clock)
        self._told = wishes(clock)
        self._now = now

    def answer(self, request: Request) -> Answer:
        """Decide whether the status may be written now; if not, record the request as a mark on the pod."""
        before = request.old_object
        if before is None or request.object is None or not self._is_held(request, before, request.object):
            return Answer("not-ours")
        pod = msgspec.convert(before["metadata"], Metadata)
        mark, now = read_mark(pod.annotations), self._now()
        told = self._told.waited(pod.uid, remember=False)
        holds = self._knowledge.holds_of_pod(pod.namespace, pod.uid)
        decision = decide(pod.uid, mark, holds, now, told_seconds=told)
        if decision.refused is None:
            return Answer(decision.word, patch=() if request.is_large else renewal(before, request.object))
        is_steady = self._steadiness.is_steady(pod.uid, mark, now, remember=not request.dry_run)
        # no mark for a kept pod: it would be as old as the refusals once these end, and so would be allowed
        if not request.dry_run and decision.word != KEPT and is_steady:
            self._told.waited(pod.uid)
            self._marker.asked(pod, request.user_info.username)
        # client-go's retries would make an unstable choice look persistent
        again = RETRY_SECONDS if is_steady or decision.word != NOT_HELD else None
        return Answer(decision.word, refusal=Refusal(429, "TooManyRequests", decision.refused, again))

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
