"""Checkpoints and Restores as the agent reads them: their pod, their order, and whether it is answered."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from cedana_sched.kube.objects import Metadata, read_time
from cedana_sched.model.objects.base import LARGEST_NUMBER
from cedana_sched.model.objects.field_names import api_name
from cedana_sched.model.preemption import Verdict, WorkloadRef
from cedana_sched.model.records import (
    TERMINAL_CHECKPOINT_STEPS,
    TERMINAL_RESTORE_STEPS,
    CheckpointStep,
)

_SETTLED = {str(step) for step in (*TERMINAL_CHECKPOINT_STEPS, *TERMINAL_RESTORE_STEPS)}
_NOT_BEGUN = {"", str(CheckpointStep.WAITING)}
_GOES = {str(verdict) for verdict in Verdict if verdict is not Verdict.NOT_NEEDED}

FOLLOWS_SECONDS: Final = 60.0
"""Grace after the deadline of an eviction, within which its scheduler has deleted the pod, if it ever does."""

Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
"""Number of an order; the API server stores no larger integer."""


class _Read(msgspec.Struct, frozen=True, rename=api_name):
    pass


class Given(_Read, frozen=True):
    """An order, undecoded; it is decoded before it is performed."""

    number: Number
    order: msgspec.Raw


class Answered(_Read, frozen=True):
    number: Number


class Status(_Read, frozen=True):
    step: str = ""
    order: Given | None = None
    answer: Answered | None = None
    incarnation: int = 0
    replaced_by: str | None = None
    deadline: str = ""
    verdict: str | None = None
    kill_pending: bool = False


class OfPod(_Read, frozen=True):
    uid: str
    name: str = ""
    node_name: str = ""


class IdentitySpec(_Read, frozen=True):
    """Identity in a spec, also of a snapshot of any generation."""

    id: str
    index: int = 0
    container: str = "main"


class Spec(_Read, frozen=True):
    uid: str
    pod_ref: OfPod
    identity: IdentitySpec | None = None
    namespace_uid: str = ""
    """Empty: written by an older coordinator, or the name is shared."""
    requested_snapshot: IdentitySpec | None = None
    policy: dict[str, Any] = {}
    first_order: Given | None = None


class OrderedObject(msgspec.Struct, frozen=True):
    """A Checkpoint or Restore."""

    metadata: Metadata
    spec: Spec
    status: Status = Status()

    @property
    def workload(self) -> WorkloadRef:
        """The pod that the object is about."""
        pod = self.spec.pod_ref
        return WorkloadRef(pod.uid, self.metadata.namespace, pod.name, pod.node_name, self.spec.namespace_uid)

    @property
    def is_terminal(self) -> bool:
        """Whether the object's step is terminal."""
        return self.status.step in _SETTLED

    def explains_deletion(self, now: float) -> bool:
        """Return whether this Checkpoint explains the deletion of its pod.

        It does while it is in flight, and after its end if its pod was to be evicted, saved or not. If the pod was to
        keep running, or the deadline of the eviction has long passed, the deletion has another cause.

        Args:
            now: seconds since the epoch, by the API server.
        """
        if not self.is_terminal or self.status.kill_pending:
            return True
        over = (read_time(self.status.deadline) or 0.0) + FOLLOWS_SECONDS
        return self.status.verdict in _GOES and now <= over

    @property
    def order(self) -> Given | None:
        """The current order, answered or not."""
        return self.status.order or self.spec.first_order

    @property
    def has_begun(self) -> bool:
        """Whether the pod may be frozen."""
        return self.order is not None or self.status.step not in _NOT_BEGUN
