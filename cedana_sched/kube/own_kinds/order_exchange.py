"""Checkpoints and Restores as the coordinator and the agents exchange orders through them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from pydantic import ValidationError

from cedana_sched.kube.builtin_kinds import Metadata, read_time
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PartialStruct, PodRef
from cedana_sched.model.objects.base import LARGEST_NUMBER
from cedana_sched.model.objects.checkpoint import TransferStatus
from cedana_sched.model.preemption import AfterCommit, Verdict, WorkloadRef
from cedana_sched.model.records import (
    TERMINAL_CHECKPOINT_STEPS,
    TERMINAL_RESTORE_STEPS,
    CheckpointStep,
    Transfer,
)
from cedana_sched.model.texts import truncate_text

_SETTLED = {str(step) for step in (*TERMINAL_CHECKPOINT_STEPS, *TERMINAL_RESTORE_STEPS)}
_NOT_BEGUN = {"", str(CheckpointStep.WAITING)}
_GOES = {str(verdict) for verdict in Verdict if verdict is not Verdict.NOT_NEEDED}

FOLLOWS_SECONDS: Final = 60.0
"""Grace after the deadline of an eviction, within which its scheduler has deleted the pod, if it ever does."""
RELEASED_SECONDS: Final = 90.0
"""The same after the end of its checkpoint, which releases the eviction, mostly long before the deadline: an eviction
is attempted for a minute. A hold that is released together with others may last longer; then a preStop hook waits in
vain."""
_LONGEST_OUTCOME: Final = 256 << 10
"""Bytes: a thousand snapshots removed by one retention. An object may be six times as large."""
_TOO_LONG: Final = msgspec.Raw(b'"too long"')
_NOTHING: Final = msgspec.Raw(b"{}")

Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
"""Number of an order; the API server stores no larger integer."""


def _copy_raw_field(read: PartialStruct, field: str) -> None:
    """Copy an undecoded part, which would keep the whole response in memory."""
    raw: msgspec.Raw = getattr(read, field)
    msgspec.structs.force_setattr(read, field, raw.copy())


class GivenOrder(PartialStruct, frozen=True):
    """An order, undecoded; it is decoded before it is performed."""

    number: Number
    order: msgspec.Raw = _NOTHING

    def __post_init__(self) -> None:
        _copy_raw_field(self, "order")


class AnsweredOrder(PartialStruct, frozen=True):
    """`outcome` is as the agent wrote it, or unreadable if it is longer than any valid outcome."""

    number: Number
    outcome: msgspec.Raw = _NOTHING

    def __post_init__(self) -> None:
        """Drop outcomes too long to be valid."""
        if memoryview(self.outcome).nbytes > _LONGEST_OUTCOME:
            msgspec.structs.force_setattr(self, "outcome", _TOO_LONG)
        _copy_raw_field(self, "outcome")


class OrderedStatus(PartialStruct, frozen=True):
    """Status of either kind; `replaced_by`, which the agent writes, is truncated."""

    step: str = ""
    order: GivenOrder | None = None
    answer: AnsweredOrder | None = None
    incarnation: int = 0
    replaced_by: str | None = None
    deadline: str = ""
    verdict: str | None = None
    kill_pending: bool = False
    cold: bool = False
    start_time: str | None = None
    completion_time: str | None = None
    lost_with_node: bool = False
    transfer: msgspec.Raw = _NOTHING

    def __post_init__(self) -> None:
        """Truncate `replaced_by`."""
        if self.replaced_by is not None:
            msgspec.structs.force_setattr(self, "replaced_by", truncate_text(self.replaced_by))
        _copy_raw_field(self, "transfer")

    @property
    def transferred(self) -> Transfer | None:
        """Bytes transferred so far; None if what the agent wrote is not valid."""
        try:
            return TransferStatus.model_validate_json(bytes(self.transfer)).as_transfer
        except ValidationError:
            return None


class NamedPod(PodRef, frozen=True):
    name: str = ""


class OrderedSpec(PartialStruct, frozen=True):
    """Spec of either kind; `policy` is undecoded, because few are read."""

    uid: str
    pod_ref: NamedPod = NamedPod()
    identity: IdentitySpec | None = None
    namespace_uid: str = ""
    """Empty: written by an older coordinator, or the name is shared."""
    requested_snapshot: IdentitySpec | None = None
    policy: msgspec.Raw = _NOTHING
    first_order: GivenOrder | None = None
    after_commit: str = ""
    """Of a Checkpoint, whether its pod is to be stopped; of a Restore, empty."""

    def __post_init__(self) -> None:
        _copy_raw_field(self, "policy")


class OrderedObject(PartialStruct, frozen=True):
    """A Checkpoint or Restore, reduced to its pod, its order, and the answer."""

    metadata: Metadata
    spec: OrderedSpec
    status: OrderedStatus = OrderedStatus()

    def __post_init__(self) -> None:
        """Drop the first order where it is not effective."""
        if self.status.order is not None:
            msgspec.structs.force_setattr(self.spec, "first_order", None)

    @property
    def workload(self) -> WorkloadRef:
        """The pod that the object is about."""
        pod = self.spec.pod_ref
        return WorkloadRef(pod.uid, self.metadata.namespace, pod.name, pod.node_name, self.spec.namespace_uid)

    @property
    def policy(self) -> Object:
        """The policy as it is written; empty if it is none."""
        try:
            return msgspec.json.decode(self.spec.policy, type=dict)
        except (ValueError, RecursionError):
            return {}

    @property
    def is_terminal(self) -> bool:
        """Whether the object's step is terminal."""
        return self.status.step in _SETTLED

    def explains_deletion(self, now: float) -> bool:
        """Return whether this Checkpoint explains the deletion of its pod.

        It does while it is in flight, and for a while after its end if its pod was to be evicted, saved or not. If the
        pod was to keep running, also from the beginning, or has outlived the eviction, the deletion has another cause.

        Args:
            now: seconds since the epoch, by the API server.
        """
        if self.spec.after_commit == AfterCommit.LEAVE_RUNNING:
            return False
        if not self.is_terminal or self.status.kill_pending:
            return True
        over = (read_time(self.status.deadline) or 0.0) + FOLLOWS_SECONDS
        if (ended_at := read_time(self.status.completion_time)) is not None:
            over = min(over, ended_at + RELEASED_SECONDS)
        return self.status.verdict in _GOES and now <= over

    @property
    def order(self) -> GivenOrder | None:
        """The current order, answered or not."""
        return self.status.order or self.spec.first_order

    @property
    def order_number(self) -> int:
        """Number of the current order; 0: none."""
        return self.order.number if self.order is not None else 0

    @property
    def has_begun(self) -> bool:
        """Whether the pod may be frozen."""
        return self.order is not None or self.status.step not in _NOT_BEGUN

    @property
    def restored_at(self) -> float | None:
        """When a Restore's pod resumed from its snapshot (seconds since the epoch); None if it did not."""
        return None if self.status.cold else read_time(self.status.start_time)
