"""Events that the core handles, besides the agents' outcomes; the shell creates them."""

from __future__ import annotations

import msgspec

from cedana_sched.adapter.contract import Report
from cedana_sched.model.orders import Order, Outcome
from cedana_sched.model.records import Checkpoint, Restore


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
    began_before: float | None = None
    """Only records that began before (epoch seconds) end: another node has the name since then."""

    def ends(self, record: Checkpoint | Restore) -> bool:
        """Return whether the record's workload was on the lost node."""
        return self.began_before is None or record.created_at < self.began_before


class NamespaceCorrected(msgspec.Struct, frozen=True):
    """The uid of the namespace of a record's pods, overriding the adapter's value; empty matches any namespace."""

    record_uid: str
    namespace_uid: str


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: a deadline may have expired."""


Event = Reported | Outcome | HoldPlaced | ReleaseDone | ReleaseFailed | OrderLost | NodeLost | NamespaceCorrected | Tick
