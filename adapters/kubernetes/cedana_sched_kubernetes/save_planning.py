"""Which pods of a node are saved before the node ends, and in which order: pure.

Saves share the node's bandwidth, so that together they take as long as one after the other. If not all of them fit into
the time that is left, those with the most work per second of it do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

OVERHEAD_SECONDS: Final = 1.0
"""Of each save besides the transfer: its order, the freeze, the commit."""
MOST_EXCHANGES: Final = 100
"""Bound of the duration of planning; each exchange improves the plan."""


class PodToSave(msgspec.Struct, frozen=True):
    """A pod, by its uid. `work` is what is lost without a save, in core seconds."""

    uid: str
    bytes_to_move: int
    work: float
    bytes_per_second: float
    """While no other pod is saved; positive."""


class SavePlan(msgspec.Struct, frozen=True):
    """`saved` has the uids in the order of their saves; `left_out` has, by uid, why a pod is not saved."""

    saved: tuple[str, ...] = ()
    left_out: dict[str, str] = {}


def seconds_to_save(pod: PodToSave) -> float:
    """Return how long the save of a pod takes while no other is saved."""
    return OVERHEAD_SECONDS + max(pod.bytes_to_move, 0) / pod.bytes_per_second


def plan_saves(pods: Iterable[PodToSave], seconds_left: float | None) -> SavePlan:
    """Plan the saves; the same plan for the same pods, whatever their order.

    Args:
        pods: each uid once.
        seconds_left: until everything must be committed; None: unknown, so that all are saved, as far as they get.
    """
    saves = sorted(map(_save_of, pods), key=_most_work_per_second)
    chosen = set(saves) if seconds_left is None else _Choice(saves, math.floor(seconds_left * 1_000)).saves()
    taken = sum(save.milliseconds for save in chosen)
    left_out = {save.pod.uid: _reason(save, taken / 1_000, seconds_left or 0.0) for save in saves if save not in chosen}
    return SavePlan(tuple(save.pod.uid for save in saves if save in chosen), left_out)


class _Save(msgspec.Struct, frozen=True):
    """A save and its duration, rounded up: sums of integers are exact."""

    pod: PodToSave
    milliseconds: int


def _save_of(pod: PodToSave) -> _Save:
    return _Save(pod, math.ceil(seconds_to_save(pod) * 1_000))


def _most_work_per_second(save: _Save) -> tuple[float, int, str]:
    return -save.pod.work / save.milliseconds, save.milliseconds, save.pod.uid


class _Choice:
    """The saves within a limit: greedily those with the most work per second, improved by exchanges.

    A choice that no exchange improves has at least half of the work of the best one: it has no less than the greedy
    one, and no less than the first save that the greedy one leaves out.
    """

    def __init__(self, saves: Sequence[_Save], limit: int) -> None:
        self._saves = saves
        self._limit = limit
        self._chosen: set[_Save] = set()
        self._taken = 0

    def saves(self) -> set[_Save]:
        """Return the chosen saves."""
        self._fill()
        for _ in range(MOST_EXCHANGES):
            if not any(self._exchange_for(save) for save in self._saves if save not in self._chosen):
                break
            self._fill()
        return self._chosen

    def _fill(self) -> None:
        for save in self._saves:
            if save not in self._chosen and self._taken + save.milliseconds <= self._limit:
                self._add(save)

    def _exchange_for(self, save: _Save) -> bool:
        """Leave out saves with less work than this one, if it then fits; return whether it is chosen now."""
        needed = self._taken + save.milliseconds - self._limit
        for displaced in (self._least_dense(needed), self._least_work(needed)):
            is_enough = sum(one.milliseconds for one in displaced) >= needed
            if is_enough and math.fsum(one.pod.work for one in displaced) < save.pod.work:
                for one in displaced:
                    self._chosen.discard(one)
                    self._taken -= one.milliseconds
                self._add(save)
                return True
        return False

    def _least_dense(self, needed: int) -> list[_Save]:
        """Return the chosen saves with the least work per second that take at least this time together, or all."""
        displaced: list[_Save] = []
        freed = 0
        for one in reversed(self._saves):
            if freed >= needed:
                break
            if one in self._chosen:
                displaced.append(one)
                freed += one.milliseconds
        return displaced

    def _least_work(self, needed: int) -> list[_Save]:
        """Return the chosen save with the least work of those that take at least this time."""
        long_enough = [one for one in self._saves if one in self._chosen and one.milliseconds >= needed]
        return [min(long_enough, key=lambda one: one.pod.work)] if long_enough else []

    def _add(self, save: _Save) -> None:
        self._chosen.add(save)
        self._taken += save.milliseconds


def _reason(save: _Save, taken: float, left: float) -> str:
    seconds = save.milliseconds / 1_000
    rate = f"{save.pod.bytes_per_second / 1e6:.0f} MB/s"
    needed = f"needs {math.ceil(seconds)} s at {rate}, {max(0, math.floor(left))} s are left"
    if seconds > left:
        return needed
    return f"{needed}, {math.ceil(taken)} s of them for pods with more work per second"
