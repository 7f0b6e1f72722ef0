"""Policy of a queue or job: deadlines, compression, retention, failure handling."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

LONGEST_DEADLINE_SECONDS = 86_400
"""Upper bound of a policy's deadlines."""
LONGEST_RECORD_SECONDS = 2 * LONGEST_DEADLINE_SECONDS
"""Upper bound from the creation of a checkpoint, hold or restore to its deadline, including extensions."""
PositiveSeconds = Annotated[float, Field(gt=0, le=LONGEST_DEADLINE_SECONDS)]
IntervalSeconds = Annotated[float, Field(ge=1, le=30 * 86_400)]
"""Time from one periodic snapshot to the next."""
StallSeconds = Annotated[float, Field(ge=0.1, le=3_600)]
"""How long a dump or restore may make no progress."""


class OnCheckpointFailure(StrEnum):
    """What happens to a victim whose snapshot was not committed before its deadline."""

    EVICT = "Evict"
    """The eviction proceeds, as without this product."""
    KEEP_RUNNING = "KeepRunning"
    """Thaw the victim and request that the scheduler not evict it; only some schedulers support this."""


class OnRestoreFailure(StrEnum):
    """What happens to a workload whose snapshot could not be restored."""

    COLD_START = "ColdStart"
    FAIL = "Fail"


class OnFinalDeletion(StrEnum):
    """What happens to a pod that is deleted and has no successor: its controller is deleted, or scaled down."""

    DISCARD = "Discard"
    """It ends as without this product."""
    SAVE = "Save"
    """It is saved before it ends, as a pod that has a successor."""


class OnNodeLoss(StrEnum):
    """What happens to a workload that was lost with its node: work after its last snapshot is repeated, or not."""

    RESTORE = "Restore"
    COLD_START = "ColdStart"
    FAIL = "Fail"


class OnVolumeChange(StrEnum):
    """What happens to a workload whose files in volumes ran ahead of its snapshot."""

    REWIND = "Rewind"
    """Truncate files that have grown to their size at the snapshot, and restore; what was changed in place stays."""
    COLD_START = "ColdStart"
    FAIL = "Fail"


class Compression(StrEnum):
    """Compression of chunks. AUTO adapts to the store's throughput."""

    AUTO = "auto"
    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


def _at_most_500(value: object) -> object:
    """Clamp values up to 10,000, which earlier versions allowed; rejecting them would invalidate the whole policy."""
    return 500 if isinstance(value, int) and 500 < value <= 10_000 else value


class Retention(BaseModel):
    """Which committed generations of an identity are kept. The newest one is always kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    # at most half of the generations read per workload (`generation_names.MOST_GENERATIONS`): others are abandoned
    keep_last: Annotated[int, Field(ge=1, le=500, alias="keepLast"), BeforeValidator(_at_most_500)] = 3
    max_age_seconds: Annotated[float | None, Field(gt=0, alias="maxAgeSeconds")] = None
    """Generations older than this are removed, whatever `keep_last` is; None: no age limit."""


class CheckpointPolicy(BaseModel):
    """The parameters of one preemption. Field names in files are camelCase, as in Kubernetes."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    deadline_seconds: Annotated[PositiveSeconds, Field(alias="deadlineSeconds")] = 600.0
    """Longest time from the signal until the eviction proceeds, committed or not."""
    restore_deadline_seconds: Annotated[PositiveSeconds, Field(alias="restoreDeadlineSeconds")] = 600.0
    """Longest time from the bind until the workload runs, restored or cold."""
    on_checkpoint_failure: Annotated[OnCheckpointFailure, Field(alias="onCheckpointFailure")] = (
        OnCheckpointFailure.EVICT
    )
    on_restore_failure: Annotated[OnRestoreFailure, Field(alias="onRestoreFailure")] = OnRestoreFailure.COLD_START
    on_final_deletion: Annotated[OnFinalDeletion, Field(alias="onFinalDeletion")] = OnFinalDeletion.DISCARD
    on_node_loss: Annotated[OnNodeLoss, Field(alias="onNodeLoss")] = OnNodeLoss.RESTORE
    on_volume_change: Annotated[OnVolumeChange, Field(alias="onVolumeChange")] = OnVolumeChange.REWIND
    """What happens if the workload ran on after its snapshot, and a file of a volume that it had open for writing has
    changed since."""
    quick_failure_threshold: Annotated[int, Field(ge=1, le=100, alias="quickFailureThreshold")] = 2
    """How many times a program may fail soon after a restore from one snapshot; after that an older snapshot is
    restored, or `on_restore_failure` applies if there is none."""
    quick_failure_seconds: Annotated[PositiveSeconds, Field(alias="quickFailureSeconds")] = 60.0
    """A failure within this time after a restore counts as a quick failure."""
    image_may_change: Annotated[bool, Field(alias="imageMayChange")] = False
    """Whether a pod may be restored with other container images than it was saved with; never with more privileges."""
    service_account_may_change: Annotated[bool, Field(alias="serviceAccountMayChange")] = False
    """Whether a pod may be restored under another ServiceAccount than the saved pod's."""
    interval_seconds: Annotated[IntervalSeconds | None, Field(alias="intervalSeconds")] = None
    """How often a running workload is saved without being stopped; None: only when it is evicted."""
    max_frozen_percent: Annotated[float, Field(ge=0.1, le=50, alias="maxFrozenPercent")] = 5.0
    """Share of a workload's time that periodic snapshots may freeze it for; if the last one froze it for longer than
    this share of the interval, the interval grows."""
    compression: Compression = Compression.AUTO
    retention: Retention = Retention()


DEADLINES: Final = ("deadline_seconds", "restore_deadline_seconds")
"""Fields that determine how long other workloads wait."""
