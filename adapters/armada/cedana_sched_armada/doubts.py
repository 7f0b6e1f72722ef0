"""Pods that are being deleted while Armada says nothing of their jobs.

Its executor deletes the pod of a preempted job as it does a cancelled one's; which of both it was, the event stream
tells, which may be broken or behind just then. The node's agent waits about 15 s for a word. So where there is none
by then, the pod is saved as if its job were preempted, and Armada decides afterwards whether the job comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cedana_sched.kube.objects import Pod
from cedana_sched_armada.jobs import job_of

WORD_SECONDS = 8.0
"""From a deletion until it counts as unexplained."""
FIRST_SECONDS = 2.0
"""Who has just begun to listen waits so long at least."""


class Doubts:
    """A sink of the mirror of protected pods.

    Args:
        doubted: told a job and its pod's uid whose deletion is so old; whether it is explained by then, it knows.
        clock: seconds since the epoch.
    """

    def __init__(self, doubted: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        self._doubted = doubted
        self._clock = clock
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def changed(self, before: Pod | None, now: Pod | None) -> None:
        """Take in a change of a pod."""
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
        """Forget all."""
        for uid in tuple(self._timers):
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
