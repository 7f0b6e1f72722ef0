"""The coordinator's state machine: events in, immutable instructions out; no await, clock or client.

`Core.handle(event, now)` is the only entry point. All durable state is in the records of `Persist` instructions:
`Core.recover(records, now)` resumes from them.
"""

from cedana_sched.coordinator.core.events import (
    Event,
    HoldPlaced,
    NamespaceCorrected,
    NodeLost,
    OrderLost,
    ReleaseDone,
    ReleaseFailed,
    Reported,
    Tick,
)
from cedana_sched.coordinator.core.instructions import (
    Instruction,
    Persist,
    PlaceHold,
    PublishEvent,
    ReleaseHold,
    Send,
    Severity,
    record_uid_of,
)
from cedana_sched.coordinator.core.invariants import forbidden_order, violations
from cedana_sched.coordinator.core.machine import Core
from cedana_sched.coordinator.core.turn import Timing

__all__ = [
    "Core",
    "Event",
    "HoldPlaced",
    "Instruction",
    "NamespaceCorrected",
    "NodeLost",
    "OrderLost",
    "Persist",
    "PlaceHold",
    "PublishEvent",
    "ReleaseDone",
    "ReleaseFailed",
    "ReleaseHold",
    "Reported",
    "Send",
    "Severity",
    "Tick",
    "Timing",
    "forbidden_order",
    "record_uid_of",
    "violations",
]
