"""Messages between the agent and its capture processes: one JSON struct on stdin, one per line on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cedana_sched.agent.workload_runtime import RunningWorkload
from cedana_sched.model import codec
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.path_segment_validation import validate_segment
from cedana_sched.model.records import Transfer
from cedana_sched.runtime_handler.progress_signs import STALL_SECONDS
from cedana_sched.snapshot.criu_toolchain import Toolchain


class CaptureRequest(msgspec.Struct, frozen=True):
    """One dump. `store` is the store's configuration as JSON values, keys included: it is never passed in an argv."""

    checkpoint_uid: str
    identity: Identity
    workload: RunningWorkload
    store: dict[str, Any]
    toolchain: Toolchain
    """The agent's own, whose files the agent has verified: not done while the workload is frozen."""
    cache_directory: str
    """Folder of the store's local copies."""
    cache_bytes: int
    """Maximum size of these copies."""
    work_directory: str
    """This dump's own folder: CRIU's log stays there if the dump fails."""
    compression: str
    reason: str
    adapter: str
    frozen_at: float
    timeout_seconds: float
    launcher: tuple[str, ...] = ()
    """Command prefix of CRIU, if CRIU must run in other namespaces than the agent."""
    lineage: Lineage | None = None
    """As in `Dump`."""
    stall_seconds: float = STALL_SECONDS
    """How long the dump may make no progress; see `watching`."""
    store_notes: str | None = None
    """Where a store that was seen is recorded; see `store.store_presence`."""
    outlives_agent: bool = False
    """Whether the capture continues when the agent exits: the next agent gets the same order, and finds its snapshot
    committed."""

    def criu_directory(self, container: str) -> Path:
        """Return CRIU's own folder for the dump of one container."""
        return criu_directory(Path(self.work_directory), container)


class CaptureProgress(msgspec.Struct, frozen=True, tag=True):
    transfer: Transfer


class CaptureCommitted(msgspec.Struct, frozen=True, tag=True):
    snapshot: SnapshotRef
    transfer: Transfer
    leaves: SnapshotRef | None = None
    manifest: str = ""
    """As in `Committed`, both."""


class CaptureFailed(msgspec.Struct, frozen=True, tag=True):
    why: str
    retryable: bool


CaptureReport = CaptureProgress | CaptureCommitted | CaptureFailed


def criu_directory(work: Path, container: str) -> Path:
    """Return CRIU's own folder for one container's dump of the capture in `work`."""
    return work / "containers" / validate_segment("container", container) if container else work


def encode(message: CaptureRequest | CaptureReport) -> bytes:
    """Encode as one line of JSON.

    A path that is not valid text is not preserved: CRIU does not find it, and reports that.
    """
    return codec.encode_with(str, message) + b"\n"


def decode_request(line: bytes) -> CaptureRequest:
    """Decode the output of `encode`."""
    return msgspec.json.decode(line, type=CaptureRequest, dec_hook=lambda _, value: Path(value))


def decode_report(line: bytes) -> CaptureReport:
    """Decode the output of `encode`."""
    report: CaptureReport = msgspec.json.decode(line, type=CaptureReport)
    return report
