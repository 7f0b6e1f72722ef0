"""Armada says no to what would bring a job back: said, tried ever more slowly, and given up at last.

A queue that was deleted, or a job that Armada does not know any more, may be there again when somebody mends it. An
Armada that does not answer, or does not let us, says nothing of the job: for that no job is ever given up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cedana_sched_armada.errors import ArmadaDeniedError, ArmadaError, ArmadaUnavailableError
from cedana_sched_armada.ledger import Case

REFUSED_SECONDS = 3_600.0
"""For so long before it is given up a job has been refused, and nothing else: who has just come back may say no."""
LONGEST_PAUSE_SECONDS = 300.0


class Refusals:
    """By preemption, since when Armada has refused.

    Args:
        tell: says of an open preemption what keeps it open.
        clock: seconds since the epoch.
        sleep: for so many seconds.
        give_up_seconds: from a preemption until its job is given up, at the earliest.
    """

    def __init__(
        self,
        tell: Callable[[Case, ArmadaError], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        give_up_seconds: float,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._sleep = sleep
        self._give_up_seconds = give_up_seconds
        self._since: dict[str, float] = {}
        self._told_at: dict[str, float] = {}

    async def heard(self, case: Case, error: ArmadaError) -> bool:
        """Take in a failed attempt, and wait before the next one: half as long as it is refused already, up to minutes.

        Returns:
            Whether there should be no next one.
        """
        self._say(case, error)
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

    def over(self, uid: str) -> None:
        """The preemption is not open any more."""
        self._since.pop(uid, None)
        self._told_at.pop(uid, None)

    def _say(self, case: Case, error: ArmadaError) -> None:
        now, told_at = self._clock(), self._told_at.get(case.uid)
        if told_at is None or now - told_at >= LONGEST_PAUSE_SECONDS:
            self._told_at[case.uid] = now
            self._tell(case, error)
