"""The rule for a Job that Kueue suspends, given its holds and the annotation that releases it.

Kueue evicts a Job by setting `spec.suspend`, and retries a refusal with growing backoff. Meanwhile it keeps the quota
reserved and the pods running. A change of the Job, such as the annotation, makes it retry within milliseconds.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from cedana_sched.eviction_holds.decision import Decision, decide_held_eviction, decide_unheld_eviction
from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.model.records import HoldStep


class Suspension(msgspec.Struct, frozen=True):
    """An attempt to suspend a Job. `released` is its annotation, `started_at` the start of the Job's current run."""

    uid: str
    released: str | None
    started_at: str | None


def decide_suspension(
    suspension: Suspension, holds: tuple[PreemptionHold, ...], *, waited_seconds: float, now: datetime
) -> Decision:
    """Decide whether the Job may be suspended now.

    Args:
        suspension: the attempt.
        holds: all of this Job, also of its earlier runs.
        waited_seconds: since the first attempt to suspend this run.
        now: by the clock that writes deadlines.
    """
    newest = max(holds, key=lambda hold: _age(hold, now), default=None)
    if (
        newest is not None
        and newest.status.step is HoldStep.HOLDING
        and (ends_at := newest.capped_deadline) is not None
    ):
        left = (ends_at - now).total_seconds()
        if suspension.released != newest.metadata.name and left > 0:
            return decide_held_eviction(newest.spec.reason, left)
    if _is_released(suspension, holds, newest):
        return Decision("released")
    over = newest is not None and newest.status.deadline is not None and not newest.status.is_cancelled
    if newest is not None and over and _is_of_current_run(newest, suspension):
        return Decision("past-deadline" if newest.status.step is HoldStep.HOLDING else "over")
    return decide_unheld_eviction(waited_seconds)


def _is_released(suspension: Suspension, holds: tuple[PreemptionHold, ...], newest: PreemptionHold | None) -> bool:
    """Whether the annotation names the newest hold, or one that was never created: there was nothing to save."""
    if newest is not None and suspension.released == newest.metadata.name:
        return _is_of_current_run(newest, suspension)
    return suspension.released is not None and all(suspension.released != hold.metadata.name for hold in holds)


def _age(hold: PreemptionHold, now: datetime) -> tuple[str, str]:
    return hold.comparable_creation_time(hold.metadata.creation_timestamp, now), hold.metadata.resource_version.zfill(
        20
    )


def _is_of_current_run(hold: PreemptionHold, suspension: Suspension) -> bool:
    """Whether the hold was created after the Job's last start; otherwise it belongs to an earlier eviction."""
    return not suspension.started_at or (hold.metadata.creation_timestamp or "") >= suspension.started_at
