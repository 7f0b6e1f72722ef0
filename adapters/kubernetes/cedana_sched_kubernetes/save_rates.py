"""At which rate a node's saves are expected to move their bytes, from earlier saves of all its namespaces: pure.

A save is slow because its node or store is, or because of the pod that it saves; and a tenant decides what its pods do.
So each namespace has one rate, and a node's rate is the median of them: whatever one namespace measures, the others'
pods are planned at a rate within the range of the others' rates. Pods of a namespace that is slower than the node are
planned at its own rate. A tenant with several namespaces has as many rates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cedana_sched_kubernetes.save_planning import OVERHEAD_SECONDS

ASSUMED_BYTES_PER_SECOND: Final = 100e6
"""Where no save of the node has moved enough to measure: a bucket over a network of 1 Gbit/s."""
LARGEST_DEVIATION: Final = 10.0
"""By which factor the only namespace that has measured moves other namespaces' rate from the assumed one."""


class MeasuredSave(msgspec.Struct, frozen=True):
    """A save that was committed: when it began, earlier than its commit, in seconds since the epoch."""

    began_at: float
    committed_at: float
    moved_bytes: int


class SaveRates(msgspec.Struct, frozen=True):
    """The rates of one node in bytes per second, by namespace; those without a measurable save are absent."""

    by_namespace: dict[str, float] = {}

    @classmethod
    def from_saves(cls, saves: Mapping[str, Sequence[MeasuredSave]]) -> SaveRates:
        """Measure the rates of a node.

        Args:
            saves: of one node, by namespace.
        """
        return cls(
            {name: statistics.median(_rates_of_periods(name, saves)) for name, of_name in saves.items() if of_name}
        )

    def rate_for(self, namespace: str) -> float:
        """Return the bytes per second at which a save of a pod of this namespace is planned."""
        ordered = sorted(self.by_namespace.values())
        own = self.by_namespace.get(namespace)
        if not ordered:
            return ASSUMED_BYTES_PER_SECOND
        if own is None and len(ordered) == 1:
            least, most = ASSUMED_BYTES_PER_SECOND / LARGEST_DEVIATION, ASSUMED_BYTES_PER_SECOND * LARGEST_DEVIATION
            return min(max(ordered[0], least), most)
        low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        of_node = min(max(own or ASSUMED_BYTES_PER_SECOND, low), high)
        return min(own or of_node, of_node)


class _Period(msgspec.Struct):
    """A time in which at least one save of a namespace was in progress."""

    began_at: float
    ended_at: float
    moved_bytes: float


def _rates_of_periods(namespace: str, saves: Mapping[str, Sequence[MeasuredSave]]) -> list[float]:
    """Return the rates of the node while saves of the namespace were in progress, one for each period.

    Saves that overlap share the node's rate. What other namespaces moved meanwhile counts, but of each of them no more
    than the namespace itself moved: none can more than double another one's rate by what it moves, or lower it.
    """
    others = [ones for name, ones in saves.items() if name != namespace]
    rates = []
    for period in _busy_periods(saves[namespace]):
        seconds = period.ended_at - period.began_at
        moved = [min(_moved_within(period, ones), period.moved_bytes) for ones in others]
        busy = max(seconds - OVERHEAD_SECONDS, seconds / 2)
        rates.append((period.moved_bytes + math.fsum(moved)) / busy)
    return rates


def _busy_periods(saves: Iterable[MeasuredSave]) -> list[_Period]:
    periods: list[_Period] = []
    for save in sorted(saves, key=lambda one: one.began_at):
        if periods and save.began_at <= periods[-1].ended_at:
            periods[-1].ended_at = max(periods[-1].ended_at, save.committed_at)
            periods[-1].moved_bytes += save.moved_bytes
        else:
            periods.append(_Period(save.began_at, save.committed_at, save.moved_bytes))
    return periods


def _moved_within(period: _Period, saves: Iterable[MeasuredSave]) -> float:
    """Return the bytes that these saves moved in the period, if each moved its bytes evenly."""
    return math.fsum(
        one.moved_bytes * shared / (one.committed_at - one.began_at)
        for one in saves
        if (shared := min(period.ended_at, one.committed_at) - max(period.began_at, one.began_at)) > 0
    )
