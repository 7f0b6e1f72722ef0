"""`PreemptionHold`: one eviction that waits for the checkpoints of its victims."""

from __future__ import annotations

from cedana_sched.model.objects.base import Condition, MicroTime, Reported, Written
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep


class HeldObject(Written):
    """The object by which the scheduler evicts, and whose change the webhook refuses: a Job, say."""

    api_version: str
    kind: str
    name: str
    uid: str


class PreemptionHoldSpec(Written):
    """Who waits for whom, and until when at the latest."""

    uid: str
    """The preemption's name in Events and logs."""
    adapter: str
    held: HeldObject | None = None
    preemptor: str | None = None
    reason: str
    together: str | None = None
    """Holds of equal value are released together."""
    created_at: MicroTime
    deadline: MicroTime


class VictimStatus(Reported):
    """What becomes of one victim."""

    pod_uid: str
    checkpoint: str
    """Name of the Checkpoint of its latest attempt."""
    verdict: Verdict | None = None
    reason: str | None = None


class PreemptionHoldStatus(Reported):
    """How far it is."""

    step: HoldStep = HoldStep.HOLDING
    deadline: MicroTime | None = None
    """When it is earlier than the spec's, because the scheduler does not wait so long."""
    victims: tuple[VictimStatus, ...] = ()
    released_at: MicroTime | None = None
    conditions: tuple[Condition, ...] = ()
