"""Whether a scheduler insists on a victim, or has only chosen another one in place of those being saved.

A refused scheduler chooses again in each cycle, not always the same victims; one that it would not choose in the end
must not be frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from cedana_sched.eviction_holds.decision import UNANNOUNCED_SECONDS
from cedana_sched.eviction_holds.first_requests import FirstRequests
from cedana_sched.eviction_holds.pod_eviction_rule import LONGEST_SILENCE_SECONDS
from cedana_sched.eviction_holds.preemption_index import PreemptionIndex
from cedana_sched.model.objects.eviction_mark import EvictionMark

CYCLE_SECONDS: Final = 0.7
"""Evictions that begin within this interval belong to one decision. Schedulers decide once a second."""
PERSISTENT_SECONDS: Final = 3.0
"""An eviction that begins while others are being saved must persist for this long before it is marked."""
LONGEST_GAP_SECONDS: Final = 2.5
"""Maximum gap between two requests of one eviction; with two replicas, each may get every other request."""


class EvictionPersistence:
    """How long each victim has been chosen.

    Args:
        preemptions: of the cluster.
        clock: monotonic seconds.
    """

    def __init__(self, preemptions: PreemptionIndex, clock: Callable[[], float]) -> None:
        self._preemptions = preemptions
        self._without_pause = FirstRequests(clock, longest_gap_seconds=LONGEST_GAP_SECONDS)
        self._with_pauses = FirstRequests(clock, longest_gap_seconds=LONGEST_SILENCE_SECONDS)

    def is_steady(self, pod_uid: str, mark: EvictionMark | None, now: datetime, *, remember: bool) -> bool:
        """Return whether the choice of this pod, requested now, is steady; `remember` the request for the next one.

        A slow scheduler, whose cycles exceed the gap, is accepted after `UNANNOUNCED_SECONDS`.
        """
        lasts = self._without_pause.seconds_since_first(pod_uid, remember=remember)
        lasts_with_pauses = self._with_pauses.seconds_since_first(pod_uid, remember=remember)
        if mark is not None and mark.is_fresh(now):
            return True
        if lasts >= PERSISTENT_SECONDS or lasts_with_pauses >= UNANNOUNCED_SECONDS:
            return True
        return not self._preemptions.is_saving_pods(now, timedelta(seconds=CYCLE_SECONDS))
