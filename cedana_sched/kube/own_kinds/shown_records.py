"""Objects of our kinds as commands show them: more than components cache, and only for the moment."""

from __future__ import annotations

from typing import Any

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata, cut_message, read_time
from cedana_sched.kube.own_kinds.measured_checkpoint import TransferredBytes
from cedana_sched.kube.own_kinds.order_exchange import NamedPod
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PartialStruct, SnapshotName
from cedana_sched.model.records import (
    TERMINAL_CHECKPOINT_STEPS,
    TERMINAL_RESTORE_STEPS,
    CheckpointStep,
    HoldStep,
    RestoreStep,
)


class TransferRead(TransferredBytes, frozen=True):
    stored_bytes: int = 0


class CheckpointSpecRead(PartialStruct, frozen=True):
    identity: IdentitySpec
    pod_ref: NamedPod = NamedPod()
    adapter: str = ""
    reason: str = ""


class CheckpointStatusRead(PartialStruct, frozen=True):
    step: CheckpointStep = CheckpointStep.WAITING
    deadline: str | None = None
    snapshot: SnapshotName | None = None
    transfer: TransferRead = TransferRead()
    freeze_time: str | None = None
    commit_time: str | None = None
    message: str | None = None


class CheckpointRead(PartialStruct, frozen=True):
    metadata: Metadata
    spec: CheckpointSpecRead
    status: CheckpointStatusRead = CheckpointStatusRead()

    @property
    def is_in_flight(self) -> bool:
        return self.status.step not in TERMINAL_CHECKPOINT_STEPS

    @property
    def committed_at(self) -> float | None:
        """Seconds since the epoch; None without a snapshot."""
        return read_time(self.status.commit_time) if self.status.snapshot is not None else None


class RestoreSpecRead(PartialStruct, frozen=True):
    identity: IdentitySpec
    pod_ref: NamedPod = NamedPod()
    adapter: str = ""


class RestoreStatusRead(PartialStruct, frozen=True):
    step: RestoreStep = RestoreStep.WAITING
    deadline: str | None = None
    snapshot: SnapshotName | None = None
    transfer: TransferRead | None = None
    cold: bool = False
    message: str | None = None


class RestoreRead(PartialStruct, frozen=True):
    metadata: Metadata
    spec: RestoreSpecRead
    status: RestoreStatusRead = RestoreStatusRead()

    @property
    def is_in_flight(self) -> bool:
        return self.status.step not in TERMINAL_RESTORE_STEPS and self.status.step is not RestoreStep.RUNNING


class HeldObjectRead(PartialStruct, frozen=True):
    kind: str = ""
    name: str = ""


class HoldSpecRead(PartialStruct, frozen=True):
    adapter: str = ""
    held_object_ref: HeldObjectRead | None = None
    preemptor: str | None = None
    reason: str = ""


class VictimRead(PartialStruct, frozen=True):
    verdict: str = ""


class HoldStatusRead(PartialStruct, frozen=True):
    step: HoldStep = HoldStep.HOLDING
    deadline: str | None = None
    victims: tuple[VictimRead, ...] = ()
    release_time: str | None = None


class HoldRead(PartialStruct, frozen=True):
    metadata: Metadata
    spec: HoldSpecRead = HoldSpecRead()
    status: HoldStatusRead = HoldStatusRead()

    @property
    def is_in_flight(self) -> bool:
        return self.status.step is not HoldStep.RELEASED


class EventSeriesRead(msgspec.Struct, frozen=True, rename="camel"):
    count: int = 0
    last_observed_time: str | None = None


class EventRead(msgspec.Struct, frozen=True, rename="camel"):
    """An Event of either API; its `message` is truncated.

    Kubernetes' newer API, with which kube-scheduler writes, leaves `lastTimestamp` and `count` empty, and has
    `eventTime` and `series` instead (`EventSeries` in k8s.io/api/core/v1).
    """

    metadata: Metadata
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeriesRead | None = None

    def __post_init__(self) -> None:
        """Truncate the message: the API server bounds those of its newer API alone."""
        cut_message(self, self.message or "")

    @property
    def last_seen_at(self) -> float | None:
        """When it happened last, in seconds since the epoch."""
        repeated = self.series.last_observed_time if self.series is not None else None
        times = (repeated, self.last_timestamp, self.event_time, self.first_timestamp, self.metadata.creation_timestamp)
        return next((at for at in map(read_time, times) if at is not None), None)

    @property
    def times_seen(self) -> int:
        """How often it happened."""
        return max(self.series.count if self.series is not None else 0, self.count or 0, 1)


class PolicyRead(msgspec.Struct, frozen=True):
    """A CheckpointPolicy; its fields are shown as they are written."""

    metadata: Metadata
    spec: dict[str, Any] = {}
