"""What an admin decides for a queue or a job: deadlines, compression, retention, what a failure does."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

LONGEST_DEADLINE_SECONDS = 86_400
"""No policy allows more."""
LONGEST_RECORD_SECONDS = 2 * LONGEST_DEADLINE_SECONDS
"""From the beginning of a checkpoint, a hold or a restore to its deadline, whatever happens to it on its way."""
PositiveSeconds = Annotated[float, Field(gt=0, le=LONGEST_DEADLINE_SECONDS)]
StallSeconds = Annotated[float, Field(ge=0.1, le=3_600)]
"""How long a dump or a restore may go without a sign of life."""


class OnCheckpointFailure(StrEnum):
    """What becomes of a victim whose snapshot could not be taken before its deadline."""

    EVICT = "Evict"
    """The eviction proceeds, as it would have without us."""
    KEEP_RUNNING = "KeepRunning"
    """The victim is thawed and its scheduler is asked not to evict it; only some schedulers can be asked."""


class OnRestoreFailure(StrEnum):
    """What becomes of a workload whose snapshot could not be continued."""

    COLD_START = "ColdStart"
    FAIL = "Fail"


class Compression(StrEnum):
    """How chunks are compressed. AUTO follows what the store keeps up with."""

    AUTO = "auto"
    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


def _at_most_500(value: object) -> object:
    """Policies and records of earlier states of this code may keep 10,000; unreadable, they would count for nothing."""
    return 500 if isinstance(value, int) and 500 < value <= 10_000 else value


class Retention(BaseModel):
    """Which committed generations of an identity are kept. The newest one is always kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    # at most half of what is read of a workload (`store.generations.MOST_GENERATIONS`): others were left behind
    keep_last: Annotated[int, Field(ge=1, le=500, alias="keepLast"), BeforeValidator(_at_most_500)] = 3
    max_age_seconds: Annotated[float | None, Field(gt=0, alias="maxAgeSeconds")] = None
    """Older generations than this go, whatever `keep_last` says; None keeps them."""


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
    quick_failure_threshold: Annotated[int, Field(ge=1, le=100, alias="quickFailureThreshold")] = 2
    """So often a program may fail soon after it was continued from one snapshot; then an older one is taken, and when
    there is none, `on_restore_failure` says what follows."""
    quick_failure_seconds: Annotated[PositiveSeconds, Field(alias="quickFailureSeconds")] = 60.0
    """How soon that is."""
    image_may_change: Annotated[bool, Field(alias="imageMayChange")] = False
    """Whether a pod may continue in containers of other images than it was saved in; never with more privileges."""
    service_account_may_change: Annotated[bool, Field(alias="serviceAccountMayChange")] = False
    """Whether a pod may continue under another ServiceAccount than that of the pod that was saved."""
    compression: Compression = Compression.AUTO
    retention: Retention = Retention()


DEADLINES: Final = ("deadline_seconds", "restore_deadline_seconds")
"""Fields that say how long others wait."""
