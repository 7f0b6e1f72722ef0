"""Checkpoints reduced to what they took: bytes and seconds. Read when a save has to be planned, and not cached."""

from __future__ import annotations

from cedana_sched.kube.builtin_kinds import read_time
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointStatus
from cedana_sched.kube.own_kinds.parts import PartialStruct


class TransferredBytes(PartialStruct, frozen=True):
    """See `model.objects.checkpoint.TransferStatus`."""

    read_bytes: int = 0
    zero_bytes: int = 0
    reused_bytes: int = 0


class MeasuredStatus(CheckpointStatus, frozen=True):
    freeze_time: str | None = None
    transfer: TransferredBytes = TransferredBytes()


class MeasuredCheckpoint(Checkpoint, frozen=True):
    """A Checkpoint, reduced to its measurements."""

    status: MeasuredStatus = MeasuredStatus()

    @property
    def used_bytes(self) -> int:
        """Memory and files of the pod, without empty pages."""
        transfer = self.status.transfer
        return max(transfer.read_bytes - transfer.zero_bytes, 0)

    @property
    def moved_bytes(self) -> int:
        """What was not in the store before."""
        return max(self.used_bytes - self.status.transfer.reused_bytes, 0)

    @property
    def frozen_seconds(self) -> float | None:
        """From freeze to commit; None unless both are recorded."""
        frozen_at, committed_at = read_time(self.status.freeze_time), self.committed_at
        return None if frozen_at is None or committed_at is None else max(committed_at - frozen_at, 0.0)
