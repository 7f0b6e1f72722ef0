"""The coordinator's mind: events in, frozen instructions out; no await, no clock, no client.

`Core.handle(event, now)` is the only way in. What survives a restart is in the records of its `Persist`
instructions and nowhere else: `Core.recover(records, now)` carries on from them.
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
)
from cedana_sched.coordinator.core.invariants import forbidden_order, violations
from cedana_sched.coordinator.core.machine import Core
from cedana_sched.coordinator.core.timing import Timing

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
    "violations",
]
