"""Terminating pods whose deletion Armada has not explained.

Armada's executor deletes the pod of a preempted job like that of a cancelled one; only the event stream distinguishes
them, and the stream may be broken or delayed. The node's agent waits about 30 s for a decision. So without an event by
then, the pod is saved as if its job were preempted, and later events decide whether the job is resubmitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched_armada.job_of_pod import job_of

WORD_SECONDS = 8.0
"""From a deletion until it counts as unexplained."""
FIRST_SECONDS = 2.0
"""Minimum delay after start, so that pending events arrive."""


class UnexplainedDeletions:
    """Sink of the informer of protected pods.

    Args:
        on_unexplained: called with job and pod uid after that delay; checks whether the deletion is explained by then.
        clock: seconds since the epoch.
    """

    def __init__(self, on_unexplained: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        self._on_unexplained = on_unexplained
        self._clock = clock
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        """Process a change of a pod."""
        if before is not None and (now is None or now.metadata.uid != before.metadata.uid):
            self._cancel_timer(before.metadata.uid)
        job = job_of(now) if now is not None else None
        if now is None or job is None or now.finished:
            return
        uid, begun_at = now.metadata.uid, now.metadata.deletion_began_at
        if begun_at is None or uid in self._timers:
            return
        pause = max(begun_at + WORD_SECONDS - self._clock(), min(FIRST_SECONDS, WORD_SECONDS))
        self._timers[uid] = asyncio.get_running_loop().call_later(pause, self._on_unexplained, job, uid)

    def stop(self) -> None:
        """Cancel all timers."""
        for uid in tuple(self._timers):
            self._cancel_timer(uid)

    def _cancel_timer(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
