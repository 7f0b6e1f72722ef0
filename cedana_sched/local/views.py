"""The types of the engine's API: plain structs that the CLI prints and scripts read.

A stable interface for scripts (`--output json`): fields may be added, never renamed. Times are seconds since the
epoch, durations end in `_seconds`, sizes in `_bytes`.
"""

from __future__ import annotations

import msgspec


class CheckpointView(msgspec.Struct, frozen=True):
    """The newest checkpoint of a job, in flight or terminal."""

    uid: str
    step: str
    phase: str
    reason: str
    preemptor: str | None
    created_at: float
    """When the preemption was observed."""
    deadline: float
    frozen_at: float | None = None
    committed_at: float | None = None
    finished_at: float | None = None
    snapshot: str | None = None
    read_bytes: int = 0
    zero_bytes: int = 0
    reused_bytes: int = 0
    stored_bytes: int = 0
    failure: str | None = None


class RestoreView(msgspec.Struct, frozen=True):
    """The newest start of a job that has an identity: a restore, or a cold start."""

    uid: str
    step: str
    created_at: float
    """When the scheduler had admitted the job."""
    snapshot: str | None = None
    cold: bool = False
    failure: str | None = None
    running_at: float | None = None


class RunView(msgspec.Struct, frozen=True):
    """One incarnation of a job's processes."""

    uid: str
    index: int
    started_at: float | None
    ended_at: float | None
    restored_from: str | None
    cold_because: str | None
    exit_code: int | None
    signal: str | None


class JobView(msgspec.Struct, frozen=True):
    """A job as `ps` and `describe` show it. `id` is None for a job that is not opted in."""

    uid: str
    name: str
    namespace: str
    id: str | None
    group: str
    phase: str
    why: str
    """In words, what the job waits for or how it ended."""
    argv: tuple[str, ...]
    priority: int
    cpus: float
    memory_bytes: int
    replicas: int
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    preemptions: int
    work_saved_seconds: float
    exit_code: int | None
    signal: str | None
    stdout: str
    stderr: str
    runs: tuple[RunView, ...] = ()
    checkpoint: CheckpointView | None = None
    restore: RestoreView | None = None
    obstacle: str | None = None
    """In words, what a checkpoint would fail for, with the remedy; None: nothing was found. Looked at soon after each
    start of the job's processes."""
    tty: bool = False
    """Whether the job has a terminal, to which one can attach."""


class GroupView(msgspec.Struct, frozen=True):
    """A group's quota and usage; `weighted_share` is Kueue's dominant resource share over the weight."""

    name: str
    nominal_cpus: float
    nominal_memory_bytes: int
    used_cpus: float
    used_memory_bytes: int
    borrowed_cpus: float
    weight: float
    weighted_share: float
    running: int
    pending: int


class EngineView(msgspec.Struct, frozen=True):
    """The engine itself."""

    version: str
    pid: int
    started_at: float
    state_directory: str
    store: str
    criu: str
    capacity_cpus: float
    capacity_memory_bytes: int
    groups: tuple[GroupView, ...]
    store_endpoint: str | None = None
    """Endpoint of an S3-compatible store; None for a folder, and for AWS itself."""
    store_region: str | None = None
    key_file: str | None = None
    """File with the keys that seal the engine's snapshots; None if sealing is off."""
    accepts_unsealed: bool = False
    """Whether the engine accepts unsealed snapshots, from before sealing was turned on."""


class EventView(msgspec.Struct, frozen=True):
    """An event: `reason` is a CamelCase constant, `text` is for users."""

    at: float
    reason: str
    text: str
    warning: bool = False
    job: str | None = None


class Change(msgspec.Struct, frozen=True):
    """One line of the watch stream: a job that changed, or an event."""

    job: JobView | None = None
    event: EventView | None = None


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A submission. Amounts may have the units of Kubernetes quantities: `2Gi`, `0.5`.

    An earlier engine accepts it, unless it uses a field that this engine lacks.
    """

    argv: tuple[str, ...]
    group: str
    name: str | None = None
    id: str | None = None
    cpus: str = "1"
    memory: str = "512Mi"
    priority: int = 0
    replicas: int = 1
    env: dict[str, str] = {}
    cwd: str | None = None
    user: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    deadline_seconds: float | None = None
    on_volume_change: str | None = None
    """`onVolumeChange` of the job's policy, if it is not its group's."""
    tty: bool = False


class Problem(msgspec.Struct, frozen=True):
    """The body of every error response: the field, the problem, the remedy."""

    message: str
    remedy: str = ""
    field: str | None = None
    kind: str = ""
    evidence: tuple[str, ...] = ()
