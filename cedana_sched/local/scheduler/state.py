"""What the scheduler decides from, and what it decides: plain immutable data.

The words are Kueue's; a group is what Kueue calls a ClusterQueue, and all groups share one cohort.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from cedana_sched.local.scheduler.resources import Limits, Resources


class PreemptionPolicy(StrEnum):
    """Whom a pending job may preempt. `LowerOrNewerEqualPriority` is for jobs of the same group only."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"
    ANY = "Any"


class QueueingStrategy(StrEnum):
    """Whether a job that does not fit blocks the later ones of its group."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class ShareStrategy(StrEnum):
    """When fair sharing lets a group take from another: Kueue's rules S2-a and S2-b."""

    LESS_THAN_OR_EQUAL_TO_FINAL_SHARE = "LessThanOrEqualToFinalShare"
    """The preemptor's share, the new job included, is at most what the victim's group keeps."""
    LESS_THAN_INITIAL_SHARE = "LessThanInitialShare"
    """The preemptor's share, the new job included, is below what the victim's group has now."""


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
    """With the above: only victims of at most this priority; None is no bound but the preemptor's own."""
    queueing: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO


class Cohort(msgspec.Struct, frozen=True):
    """All groups of the machine. `share_strategies` empty: no fair sharing, reclaim by quota alone."""

    groups: dict[str, Group]
    share_strategies: tuple[ShareStrategy, ...] = ()


class PendingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits. `request` is the sum over its replicas; a requeued job keeps its `submitted_at`."""

    uid: str
    group: str
    request: Resources
    priority: int
    submitted_at: float
    name: str = ""
    """What reasons call it; its uid when empty."""
    claims: bool = False
    """Others were preempted for it: it was among the `claims` of the decisions before."""

    @property
    def label(self) -> str:
        return self.name or self.uid


class Eviction(msgspec.Struct, frozen=True):
    """A preemption under way. `revocable`: it is held and can still be called off."""

    preemptor: str | None
    revocable: bool


class AdmittedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has its place, also while it is being evicted: it counts as usage until it is gone."""

    uid: str
    group: str
    request: Resources
    priority: int
    submitted_at: float
    admitted_at: float
    eviction: Eviction | None = None
    preemptible: bool = True
    """False while it starts: it has nothing to freeze yet."""
    protected_until: float = 0.0
    """It asked to be left alone until then (epoch seconds), after a snapshot that could not be taken."""
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or self.uid


class ClusterState(msgspec.Struct, frozen=True):
    """Everything that `decide` looks at, apart from the time."""

    cohort: Cohort
    pending: tuple[PendingJob, ...] = ()
    admitted: tuple[AdmittedJob, ...] = ()


class Preemption(msgspec.Struct, frozen=True):
    """`victim` must make place for `preemptor`."""

    victim: str
    preemptor: str
    reason: PreemptionReason


class Decisions(msgspec.Struct, frozen=True):
    """What to do now. `waiting` and `unschedulable` say in words why each other pending job waits."""

    admissions: tuple[str, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    unneeded: tuple[str, ...] = ()
    """Jobs whose revocable eviction serves nobody any more."""
    waiting: dict[str, str] = {}
    unschedulable: dict[str, str] = {}
    """Jobs that cannot fit however long they wait, since the quota was changed."""
    claims: frozenset[str] = frozenset()
    """Waiting jobs for which a place is being freed: they come first until they have it, or cannot have it."""
    wake_at: float | None = None
    """Decide again at this time (epoch seconds) even if nothing happens: a protection ends."""
