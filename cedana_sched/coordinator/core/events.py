"""Events that the core handles, besides the agents' outcomes; the shell creates them."""

from __future__ import annotations

import msgspec

from cedana_sched.adapter.contract import Report
from cedana_sched.model.orders import Order, Outcome


class Reported(msgspec.Struct, frozen=True):
    """An adapter's report, with the adapter's name."""

    adapter: str
    report: Report


class HoldPlaced(msgspec.Struct, frozen=True):
    """The adapter holds the eviction until `until` (epoch seconds; None: without a limit of its own)."""

    signal_uid: str
    until: float | None = None


class ReleaseDone(msgspec.Struct, frozen=True):
    """The adapter has released its scheduler."""

    signal_uid: str


class ReleaseFailed(msgspec.Struct, frozen=True):
    """The adapter could not release its scheduler; the shell retries."""

    signal_uid: str
    why: str


class OrderLost(msgspec.Struct, frozen=True):
    """An order ended without an answer: its agent died or is unreachable."""

    order: Order
    why: str


class NodeLost(msgspec.Struct, frozen=True):
    """A node is permanently gone with all its processes. The reporter must be certain (fencing)."""

    node: str
    keeps_restores: bool = False
    """Only checkpoints end: a pod may have started there after the node was said to be gone."""


class NamespaceCorrected(msgspec.Struct, frozen=True):
    """The uid of the namespace of a record's pods, overriding the adapter's value; empty matches any namespace."""

    record_uid: str
    namespace_uid: str


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: a deadline may have expired."""


Event = Reported | Outcome | HoldPlaced | ReleaseDone | ReleaseFailed | OrderLost | NodeLost | NamespaceCorrected | Tick
