"""What the core can be told, beside the agents' outcomes: the shell makes these, the machine handles them."""

from __future__ import annotations

import msgspec

from cedana_sched.adapter.contract import Report
from cedana_sched.model.orders import Order, Outcome


class Reported(msgspec.Struct, frozen=True):
    """An adapter's report, with the name of the adapter that it came from."""

    adapter: str
    report: Report


class HoldPlaced(msgspec.Struct, frozen=True):
    """The adapter holds the eviction until `until` (epoch seconds; None: for as long as we want)."""

    signal_uid: str
    until: float | None = None


class ReleaseDone(msgspec.Struct, frozen=True):
    """The adapter let its scheduler go on."""

    signal_uid: str


class ReleaseFailed(msgspec.Struct, frozen=True):
    """The adapter could not tell its scheduler; the shell tries again."""

    signal_uid: str
    why: str


class OrderLost(msgspec.Struct, frozen=True):
    """An order ended without an answer: its agent died or cannot be reached."""

    order: Order
    why: str


class NodeLost(msgspec.Struct, frozen=True):
    """A node is gone for good, with every process on it. Whoever reports it must be sure (fencing)."""

    node: str


class NamespaceCorrected(msgspec.Struct, frozen=True):
    """The pods of a record are in the namespace with this uid, whatever their adapter has said; empty: of any."""

    record_uid: str
    namespace_uid: str


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: a deadline may be due."""


Event = Reported | Outcome | HoldPlaced | ReleaseDone | ReleaseFailed | OrderLost | NodeLost | NamespaceCorrected | Tick
