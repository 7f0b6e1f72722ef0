"""What the core wants done. The shell carries them out in order: whatever is persisted comes first."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import Order
from cedana_sched.model.preemption import HeldObject, Release, Signal, WorkloadRef
from cedana_sched.model.records import Record


class Persist(msgspec.Struct, frozen=True):
    """Write these records and drop those, atomically, before any later instruction is carried out."""

    records: tuple[Record, ...]
    forget: tuple[Record, ...] = ()


class Send(msgspec.Struct, frozen=True):
    """Give an order to the agent of a node."""

    node: str
    order: Order


class PlaceHold(msgspec.Struct, frozen=True):
    """Ask the adapter to hold an eviction; answered by `HoldPlaced`."""

    adapter: str
    signal: Signal


class ReleaseHold(msgspec.Struct, frozen=True):
    """Tell the adapter how a hold ended, again and again until it is done: `ReleaseDone`."""

    adapter: str
    release: Release


class Severity(StrEnum):
    """As of Kubernetes Events."""

    NORMAL = "Normal"
    WARNING = "Warning"


class PublishEvent(msgspec.Struct, frozen=True):
    """Something a person wants to know. `kind` is an Event's reason (CamelCase); `text` is at most 1 KiB."""

    kind: str
    text: str
    severity: Severity = Severity.NORMAL
    identity: Identity | None = None
    workload: WorkloadRef | None = None
    signal_uid: str | None = None
    """The preemption that it belongs to: one id across all components' logs."""
    held: HeldObject | None = None
    """The object on which its owner looks first: that by which the preemption evicts; without one, the pod's controller
    where whoever tells it knows it."""
    victims: tuple[WorkloadRef, ...] = ()
    """Whom that preemption evicts, where it does so by no object but theirs."""


Instruction = Persist | Send | PlaceHold | ReleaseHold | PublishEvent
