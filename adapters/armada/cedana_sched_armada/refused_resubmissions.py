"""Armada's refusals to resubmit a job: published, retried with backoff, and finally given up.

A deleted queue, or a job unknown to Armada, may exist again once an admin has fixed that. Unavailability and denied
access prove nothing about the job: no job is ever given up because of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cedana_sched_armada.errors import ArmadaDeniedError, ArmadaError, ArmadaUnavailableError
from cedana_sched_armada.ledger import OpenPreemption

REFUSED_SECONDS = 3_600.0
"""Minimum duration of uninterrupted refusals before a job is given up: a server that just restarted may refuse."""
LONGEST_PAUSE_SECONDS = 300.0


class RefusedResubmissions:
    """Tracks per preemption since when Armada has refused.

    Args:
        publish: publishes what keeps a preemption open.
        clock: seconds since the epoch.
        sleep: for so many seconds.
        give_up_seconds: minimum time from a preemption until its job is given up.
    """

    def __init__(
        self,
        publish: Callable[[OpenPreemption, ArmadaError], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        give_up_seconds: float,
    ) -> None:
        self._publish = publish
        self._clock = clock
        self._sleep = sleep
        self._give_up_seconds = give_up_seconds
        self._since: dict[str, float] = {}
        self._published_at: dict[str, float] = {}

    async def back_off_or_give_up(self, case: OpenPreemption, error: ArmadaError) -> bool:
        """Record a failed attempt, and sleep before the next one: half the time since the first refusal, up to minutes.

        Returns:
            Whether to give up.
        """
        self._publish_refusal(case, error)
        if isinstance(error, ArmadaUnavailableError | ArmadaDeniedError):
            self._since.pop(case.uid, None)
            return False
        now = self._clock()
        refused = now - self._since.setdefault(case.uid, now)
        if now - case.at >= self._give_up_seconds and refused >= min(REFUSED_SECONDS, self._give_up_seconds):
            return True
        if refused > 0:
            await self._sleep(min(refused / 2, LONGEST_PAUSE_SECONDS))
        return False

    def forget_preemption(self, uid: str) -> None:
        """Drop a preemption that is no longer open."""
        self._since.pop(uid, None)
        self._published_at.pop(uid, None)

    def _publish_refusal(self, case: OpenPreemption, error: ArmadaError) -> None:
        now, published_at = self._clock(), self._published_at.get(case.uid)
        if published_at is None or now - published_at >= LONGEST_PAUSE_SECONDS:
            self._published_at[case.uid] = now
            self._publish(case, error)
