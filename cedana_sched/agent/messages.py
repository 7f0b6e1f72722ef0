"""What the agent and its capture processes say to each other: one JSON struct on stdin, one per line on stdout."""

from __future__ import annotations

from typing import Any

import msgspec

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.records import Transfer


class CaptureRequest(msgspec.Struct, frozen=True):
    """One dump. `store` is the store's configuration as JSON values, keys included: it never stands in an argv."""

    checkpoint_uid: str
    identity: Identity
    root_pid: int
    freezer: str
    externals: tuple[str, ...]
    restore_facts: dict[str, Any]
    store: dict[str, Any]
    cache_directory: str
    """Where the toolchain lies that the agent uses."""
    work_directory: str
    """This dump's own folder: CRIU's log stays there when it fails."""
    compression: str
    reason: str
    adapter: str
    frozen_at: float
    timeout_seconds: float


class CaptureProgress(msgspec.Struct, frozen=True, tag=True):
    transfer: Transfer


class CaptureCommitted(msgspec.Struct, frozen=True, tag=True):
    snapshot: SnapshotRef
    transfer: Transfer


class CaptureFailed(msgspec.Struct, frozen=True, tag=True):
    why: str
    retryable: bool


CaptureReport = CaptureProgress | CaptureCommitted | CaptureFailed
