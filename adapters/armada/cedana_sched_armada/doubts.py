"""Terminating pods whose deletion Armada has not explained.

Armada's executor deletes the pod of a preempted job like that of a cancelled one; only the event stream distinguishes
them, and the stream may be broken or delayed. The node's agent waits about 15 s for a decision. So without an event by
then, the pod is saved as if its job were preempted, and later events decide whether the job is resubmitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cedana_sched.kube.objects import Pod
from cedana_sched_armada.jobs import job_of

WORD_SECONDS = 8.0
"""From a deletion until it counts as unexplained."""
FIRST_SECONDS = 2.0
"""Minimum delay after start, so that pending events arrive."""


class Doubts:
    """Sink of the informer of protected pods.

    Args:
        doubted: called with job and pod uid after that delay; it checks whether the deletion is explained by then.
        clock: seconds since the epoch.
    """

    def __init__(self, doubted: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        self._doubted = doubted
        self._clock = clock
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def changed(self, before: Pod | None, now: Pod | None) -> None:
        """Process a change of a pod."""
        if before is not None and (now is None or now.metadata.uid != before.metadata.uid):
            self._forget(before.metadata.uid)
        job = job_of(now) if now is not None else None
        if now is None or job is None or now.finished:
            return
        uid, ends_at = now.metadata.uid, now.metadata.ends_at
        if ends_at is None or uid in self._timers:
            return
        begun_at = ends_at - (now.metadata.deletion_grace_period_seconds or 0)
        pause = max(begun_at + WORD_SECONDS - self._clock(), min(FIRST_SECONDS, WORD_SECONDS))
        self._timers[uid] = asyncio.get_running_loop().call_later(pause, self._doubted, job, uid)

    def stop(self) -> None:
        """Cancel all timers."""
        for uid in tuple(self._timers):
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
