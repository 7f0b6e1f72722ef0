"""What the commands show of a cluster, also as JSON: sizes in bytes, times in seconds since the epoch.

Fields are added, never renamed.
"""

from __future__ import annotations

from typing import Any

import msgspec


class PodView(msgspec.Struct, kw_only=True, frozen=True):
    """A protected pod, and what a preemption would cost now."""

    namespace: str
    name: str
    id: str
    index: int
    node: str
    phase: str
    checkpointable: bool | None
    """Whether its agent expects a checkpoint to succeed; None: not inspected yet."""
    obstacle: str | None
    """Why a checkpoint would fail."""
    started_at: float | None
    snapshots: int
    snapshot: str | None
    """The newest snapshot of its identity, as `id/index@generation`."""
    saved_at: float | None
    """When that one was committed."""
    read_bytes: int
    """State in that one."""


class OperationView(msgspec.Struct, kw_only=True, frozen=True):
    """A checkpoint, a restore or a hold in progress, or the record of one."""

    kind: str
    namespace: str
    name: str
    pod: str
    """For a hold: the kind and name of the object that is held."""
    node: str = ""
    id: str = ""
    index: int = 0
    snapshot: str | None = None
    step: str
    done_bytes: int = 0
    total_bytes: int | None = None
    """Of a restore the bytes of its snapshot, of a checkpoint those of the snapshot before; None if unknown."""
    stored_bytes: int = 0
    began_at: float | None
    frozen_at: float | None = None
    committed_at: float | None = None
    deadline: float | None
    adapter: str
    reason: str
    message: str | None = None


class EventView(msgspec.Struct, kw_only=True, frozen=True):
    """An Event about a pod."""

    at: float | None
    warning: bool
    reason: str
    text: str
    count: int


class PodDetails(msgspec.Struct, kw_only=True, frozen=True):
    """All about one pod and its identity."""

    pod: PodView
    operations: tuple[OperationView, ...]
    events: tuple[EventView, ...]


class HoldView(msgspec.Struct, kw_only=True, frozen=True):
    """An eviction that waits for checkpoints, or has waited."""

    namespace: str
    name: str
    held: str
    """Kind and name of the object whose update is refused; empty: the pods themselves are held."""
    adapter: str
    step: str
    reason: str
    preemptor: str | None
    began_at: float | None
    deadline: float | None
    released_at: float | None
    verdicts: dict[str, int]
    """How many victims have each verdict; empty until it is released."""


class PolicyView(msgspec.Struct, kw_only=True, frozen=True):
    """A CheckpointPolicy; `spec` is as written."""

    name: str
    spec: dict[str, Any]
