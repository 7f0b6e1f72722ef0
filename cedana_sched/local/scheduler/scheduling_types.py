"""Input and output of the scheduler: plain immutable data.

The terms are Kueue's; a group is Kueue's ClusterQueue, and all groups share one cohort.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from cedana_sched.local.scheduler.resources import Limits, Resources


class PreemptionPolicy(StrEnum):
    """Which jobs a pending job may preempt. `LowerOrNewerEqualPriority` is for jobs of the same group only."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"
    ANY = "Any"


class QueueingStrategy(StrEnum):
    """Whether a job that does not fit blocks later jobs of its group."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class ShareStrategy(StrEnum):
    """When fair sharing allows preemption between groups: Kueue's rules S2-a and S2-b."""

    LESS_THAN_OR_EQUAL_TO_FINAL_SHARE = "LessThanOrEqualToFinalShare"
    """The preemptor's share, the new job included, is at most the victim group's share after the preemption."""
    LESS_THAN_INITIAL_SHARE = "LessThanInitialShare"
    """The preemptor's share, the new job included, is below the victim group's current share."""


class PreemptionReason(StrEnum):
    """Why a victim was chosen."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"

    @property
    def words(self) -> str:
        return _REASON_WORDS[self]


_REASON_WORDS = {
    PreemptionReason.IN_CLUSTER_QUEUE: "priority within the group",
    PreemptionReason.IN_COHORT_RECLAMATION: "reclamation within the cohort",
    PreemptionReason.IN_COHORT_FAIR_SHARING: "fair sharing within the cohort",
    PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING: "reclamation within the cohort while borrowing",
}


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group's quota and rules (Kueue: ClusterQueue)."""

    name: str
    nominal: Resources
    borrowing_limit: Limits = Limits()
    lending_limit: Limits = Limits()
    weight: float = 1.0
    within_group: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim: PreemptionPolicy = PreemptionPolicy.NEVER
    borrow_while_preempting: bool = False
    """Kueue's `borrowWithinCohort.policy: LowerPriority`."""
    max_priority_threshold: int | None = None
    """With `borrow_while_preempting`: the victims' maximum priority; None is no bound but the preemptor's priority."""
    queueing: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO


class Cohort(msgspec.Struct, frozen=True):
    """All groups of the machine. Empty `share_strategies`: no fair sharing, reclaim by quota alone."""

    groups: dict[str, Group]
    share_strategies: tuple[ShareStrategy, ...] = ()


class PendingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A queued job. `request` is the sum over its replicas; a requeued job keeps its `submitted_at`."""

    uid: str
    group: str
    request: Resources
    priority: int
    submitted_at: float
    name: str = ""
    """The job's name in explanations; its uid if empty."""
    claims: bool = False
    """Whether jobs were preempted for this one: it was among the `claims` of the previous decisions."""

    @property
    def display_name(self) -> str:
        return self.name or self.uid


class Eviction(msgspec.Struct, frozen=True):
    """A preemption in flight. `revocable`: the eviction is held and can still be cancelled."""

    preemptor: str | None
    revocable: bool


class AdmittedJob(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted job; it counts as usage until it is gone, also while it is being evicted."""

    uid: str
    group: str
    request: Resources
    priority: int
    submitted_at: float
    admitted_at: float
    eviction: Eviction | None = None
    preemptible: bool = True
    """False while the job starts, because it has no processes to freeze yet."""
    protected_until: float = 0.0
    """The job is not preempted before this time (epoch seconds); see `preemption_backoff`."""
    name: str = ""

    @property
    def display_name(self) -> str:
        return self.name or self.uid


class ClusterState(msgspec.Struct, frozen=True):
    """The input of `decide`, except the time."""

    cohort: Cohort
    pending: tuple[PendingJob, ...] = ()
    admitted: tuple[AdmittedJob, ...] = ()


class Preemption(msgspec.Struct, frozen=True):
    """A decision to preempt `victim` for `preemptor`."""

    victim: str
    preemptor: str
    reason: PreemptionReason


class Decisions(msgspec.Struct, frozen=True):
    """The decisions of one cycle. `waiting` and `unschedulable` explain why each other pending job waits."""

    admissions: tuple[str, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    unneeded: tuple[str, ...] = ()
    """Jobs whose revocable eviction is no longer needed by any preemptor."""
    waiting: dict[str, str] = {}
    unschedulable: dict[str, str] = {}
    """Jobs that can never fit, because the quota was changed after their submission."""
    claims: frozenset[str] = frozenset()
    """Waiting jobs for which a place is being freed; they have precedence until they are admitted or no longer fit."""
    wake_at: float | None = None
    """When a protection ends and the next cycle is due without an event (epoch seconds)."""
