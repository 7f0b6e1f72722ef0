"""The core's instructions. The shell executes them in order, after persisting the records."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import FailWorkload, FindSnapshot, Order, RestoreSnapshot, Stage, StartCold
from cedana_sched.model.preemption import HeldObject, Release, Signal, WorkloadRef
from cedana_sched.model.records import Record


class Persist(msgspec.Struct, frozen=True):
    """Write and drop these records, atomically, before any later instruction is executed."""

    records: tuple[Record, ...]
    forget: tuple[Record, ...] = ()


class Send(msgspec.Struct, frozen=True):
    """Send an order to a node's agent."""

    node: str
    order: Order


class PlaceHold(msgspec.Struct, frozen=True):
    """Have the adapter hold an eviction; answered by `HoldPlaced`."""

    adapter: str
    signal: Signal


class ReleaseHold(msgspec.Struct, frozen=True):
    """Release a hold through the adapter, with retries until `ReleaseDone`."""

    adapter: str
    release: Release


class Severity(StrEnum):
    """Type of a Kubernetes Event."""

    NORMAL = "Normal"
    WARNING = "Warning"


class PublishEvent(msgspec.Struct, frozen=True):
    """A user-facing event. `kind` is the Event's reason (CamelCase); `text` is at most 1 KiB."""

    kind: str
    text: str
    severity: Severity = Severity.NORMAL
    identity: Identity | None = None
    workload: WorkloadRef | None = None
    signal_uid: str | None = None
    """Correlation id of the preemption, shared by all components' logs."""
    held: HeldObject | None = None
    """The object that the Event regards: the one by which the preemption evicts; otherwise the pod's controller, if
    known to the publisher."""
    victims: tuple[WorkloadRef, ...] = ()
    """Victims of a preemption that evicts by no other object."""


Instruction = Persist | Send | PlaceHold | ReleaseHold | PublishEvent


def record_uid_of(order: Order) -> str:
    """Return the uid of the record that an order belongs to."""
    if isinstance(order, FindSnapshot | Stage | RestoreSnapshot | StartCold | FailWorkload):
        return order.restore_uid
    return order.checkpoint_uid
