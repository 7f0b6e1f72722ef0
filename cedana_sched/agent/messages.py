"""What the agent and its capture processes say to each other: one JSON struct on stdin, one per line on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cedana_sched.agent.runtime import RunningWorkload
from cedana_sched.model import codec
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.records import Transfer
from cedana_sched.model.segments import segment
from cedana_sched.runtime.signs import STALL_SECONDS
from cedana_sched.snapshot.toolchain import Toolchain


class CaptureRequest(msgspec.Struct, frozen=True):
    """One dump. `store` is the store's configuration as JSON values, keys included: it never stands in an argv."""

    checkpoint_uid: str
    identity: Identity
    workload: RunningWorkload
    store: dict[str, Any]
    toolchain: Toolchain
    """The agent's own, which has looked at every file of it already: nobody waits for that while he is frozen."""
    cache_directory: str
    """Where the store keeps copies of what it needs again."""
    cache_bytes: int
    """The most that these copies may take."""
    work_directory: str
    """This dump's own folder: CRIU's log stays there when it fails."""
    compression: str
    reason: str
    adapter: str
    frozen_at: float
    timeout_seconds: float
    launcher: tuple[str, ...] = ()
    """The words before CRIU's own, where CRIU must run in other namespaces than the agent."""
    lineage: Lineage | None = None
    """As of `Dump`."""
    stall_seconds: float = STALL_SECONDS
    """How long it may go without a sign of life; see `watching`."""
    store_notes: str | None = None
    """Where it is noted that a store was seen; see `store.mark`."""
    outlives_agent: bool = False
    """Whether it goes on when the agent ends: the next agent gets the same order, and finds it committed."""

    def criu_directory(self, container: str) -> Path:
        """CRIU's own folder for the dump of one container."""
        return criu_directory(Path(self.work_directory), container)


class CaptureProgress(msgspec.Struct, frozen=True, tag=True):
    transfer: Transfer


class CaptureCommitted(msgspec.Struct, frozen=True, tag=True):
    snapshot: SnapshotRef
    transfer: Transfer
    leaves: SnapshotRef | None = None
    manifest: str = ""
    """As of `Committed`, both."""


class CaptureFailed(msgspec.Struct, frozen=True, tag=True):
    why: str
    retryable: bool


CaptureReport = CaptureProgress | CaptureCommitted | CaptureFailed


def criu_directory(work: Path, container: str) -> Path:
    """CRIU's own folder for one container's dump of the capture in `work`."""
    return work / "containers" / segment("container", container) if container else work


def encode(message: CaptureRequest | CaptureReport) -> bytes:
    """As one line of JSON. A path that is no text does not arrive as it was: CRIU does not find it, and says so."""
    return codec.encode_with(str, message) + b"\n"


def decode_request(line: bytes) -> CaptureRequest:
    """What `encode` wrote."""
    return msgspec.json.decode(line, type=CaptureRequest, dec_hook=lambda _, value: Path(value))


def decode_report(line: bytes) -> CaptureReport:
    """What `encode` wrote."""
    report: CaptureReport = msgspec.json.decode(line, type=CaptureReport)
    return report
