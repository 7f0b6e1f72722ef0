"""`PreemptionHold`: one eviction that waits for the checkpoints of its victims."""

from __future__ import annotations

from cedana_sched.model.objects.base import Condition, MicroTime, NamespaceUid, PodUid, RecordUid, Reported, Written
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep


class HeldObjectSpec(Written):
    """The object by which the scheduler evicts, and whose change the webhook refuses: a Job, say."""

    api_version: str
    kind: str
    name: str
    uid: str


class PreemptionHoldSpec(Written):
    """Who waits for whom, and why."""

    uid: RecordUid
    """The preemption's name in Events and logs."""
    adapter: str
    held_object_ref: HeldObjectSpec | None = None
    preemptor: str | None = None
    """Its name, or its uid alone where it is in a namespace that this one's users need not know of."""
    reason: str
    release_group: str | None = None
    """Holds of equal value are released together."""
    namespace_uid: NamespaceUid | None = None
    """Of the namespace that it was made for: in another one of that name it counts for nothing. Absent where an older
    version wrote it, or where the admin shares the name."""
    creation_time: MicroTime


class VictimStatus(Reported):
    """What becomes of one victim."""

    pod_uid: PodUid
    verdict: Verdict
    reason: str | None = None


class PreemptionHoldStatus(Reported):
    """How far it is."""

    step: HoldStep = HoldStep.HOLDING
    deadline: MicroTime
    """When it ends at the latest."""
    checkpoint_uids: tuple[RecordUid, ...] = ()
    """Uids of the Checkpoints that it waits for: for each victim the latest attempt."""
    victims: tuple[VictimStatus, ...] = ()
    """From the moment the release is decided."""
    release_time: MicroTime | None = None
    conditions: tuple[Condition, ...] = ()
