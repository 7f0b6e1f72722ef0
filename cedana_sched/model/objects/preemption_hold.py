"""`PreemptionHold`: one eviction that waits for the checkpoints of its victims."""

from __future__ import annotations

from cedana_sched.model.objects.base import (
    Condition,
    MicroTime,
    NamespaceUid,
    PodUid,
    RecordUid,
    ReportedStatus,
    UserWritten,
)
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep


class HeldObjectSpec(UserWritten):
    """The object by which the scheduler evicts, and whose update the webhook refuses; for example a Job."""

    api_version: str
    kind: str
    name: str
    uid: str


class PreemptionHoldSpec(UserWritten):
    """The preemption whose eviction is held, with its preemptor and reason."""

    uid: RecordUid
    """Uid of the preemption in Events and logs."""
    adapter: str
    held_object_ref: HeldObjectSpec | None = None
    preemptor: str | None = None
    """The preemptor's name; only its uid if its namespace must not be disclosed to users of this one."""
    reason: str
    release_group: str | None = None
    """Holds of equal value are released together."""
    namespace_uid: NamespaceUid | None = None
    """Uid of the namespace that the object was created for; the object has no effect in a recreated namespace of the
    same name. Absent if an older version wrote the object, or if the admin shares the name."""
    creation_time: MicroTime


class VictimStatus(ReportedStatus):
    """The verdict on one victim."""

    pod_uid: PodUid
    verdict: Verdict
    reason: str | None = None


class PreemptionHoldStatus(ReportedStatus):
    """Observed state of the hold."""

    step: HoldStep = HoldStep.HOLDING
    deadline: MicroTime
    """When the hold expires at the latest."""
    checkpoint_uids: tuple[RecordUid, ...] = ()
    """Uids of the Checkpoints that the hold waits for: the latest attempt for each victim."""
    victims: tuple[VictimStatus, ...] = ()
    """Set once the release is decided."""
    release_time: MicroTime | None = None
    conditions: tuple[Condition, ...] = ()
