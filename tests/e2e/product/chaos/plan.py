"""What befalls the cluster, and when: drawn from a seed, so that a run can be repeated.

Pure: the same seed and length give the same plan on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Ground(StrEnum):
    """What a fault takes away. Two faults that take the same thing away do not overlap."""

    CONTROL_PLANE = "control plane"
    NODE = "node"
    PART = "part"
    STORE = "store"


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Args:
        ground: what it takes away.
        seconds: how long it may last, from and to.
        weight: the heavier, the earlier in its round; each kind comes once in a round.
        targets: one of them is drawn.
    """

    ground: Ground
    seconds: tuple[float, float] = (0.0, 0.0)
    weight: int = 2
    targets: Sequence[str] = ("",)


PARTS = ("coordinator", "webhooks", "agent", "prestop-proxy")
NODES = ("first", "last")

KINDS: Mapping[str, Kind] = {
    "part-killed": Kind(Ground.PART, weight=4, targets=PARTS),
    "part-deleted": Kind(Ground.PART, weight=3, targets=PARTS),
    "scheduler-killed": Kind(Ground.PART, weight=2, targets=("kueue", "volcano", "kube-scheduler")),
    "webhooks-away": Kind(Ground.PART, (4, 12), weight=2),
    "clock-apart": Kind(Ground.PART, (10, 20), weight=1, targets=("+40s", "-40s")),
    "api-server-restarted": Kind(Ground.CONTROL_PLANE, weight=3),
    "api-server-away": Kind(Ground.CONTROL_PLANE, (3, 10), weight=2),
    "etcd-restarted": Kind(Ground.CONTROL_PLANE, weight=1),
    "store-slow": Kind(Ground.STORE, (5, 15), weight=2),
    "store-refusing": Kind(Ground.STORE, (3, 12), weight=2),
    "store-full": Kind(Ground.STORE, (3, 12), weight=2),
    "store-wrong-bytes": Kind(Ground.STORE, (3, 10), weight=2),
    "node-killed": Kind(Ground.NODE, (5, 20), weight=2, targets=NODES),
    "node-rebooted": Kind(Ground.NODE, weight=2, targets=NODES),
    "node-cut": Kind(Ground.NODE, (3, 10), weight=1, targets=NODES),
    "containerd-restarted": Kind(Ground.NODE, weight=2, targets=NODES),
    "kubelet-restarted": Kind(Ground.NODE, weight=2, targets=NODES),
}

FIRST_AFTER_SECONDS = 10.0
"""By then the load has begun."""
PAUSE_SECONDS = (4.0, 14.0)
"""Between the beginnings of two faults."""


@dataclass(frozen=True)
class Fault:
    """One fault of a plan: when it begins, in seconds from the beginning of the run, and how many it lasts."""

    at: float
    kind: str
    target: str
    seconds: float

    @property
    def ground(self) -> Ground:
        return KINDS[self.kind].ground

    def __str__(self) -> str:
        target = f" {self.target}" if self.target else ""
        lasting = f" for {self.seconds:.0f} s" if self.seconds else ""
        return f"{self.kind}{target}{lasting}"


def draw(seed: int, minutes: float) -> list[Fault]:
    """The faults of a run, in the order in which they begin; all end before the run does, if none waits for another.

    Each kind comes once before one comes again, as far as the length allows, so that short runs differ by their seed.
    """
    dice = random.Random(seed)
    faults: list[Fault] = []
    at, end = FIRST_AFTER_SECONDS, minutes * 60
    deck: list[str] = []
    while True:
        deck = deck or _shuffled(dice)
        name = deck.pop()
        kind = KINDS[name]
        seconds = round(dice.uniform(*kind.seconds), 1)
        if at + seconds >= end:
            return faults
        faults.append(Fault(round(at, 1), name, dice.choice(kind.targets), seconds))
        at += dice.uniform(*PAUSE_SECONDS)


def _shuffled(dice: random.Random) -> list[str]:
    """Each kind once; the heavier ones come last, which is where one draws from, more often than not."""
    return sorted(KINDS, key=lambda name: dice.random() ** (1 / KINDS[name].weight))
