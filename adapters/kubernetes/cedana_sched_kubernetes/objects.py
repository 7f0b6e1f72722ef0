"""Kubernetes' kinds that only this adapter reads, reduced to the fields read here; msgspec skips all others."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cedana_sched.kube.builtin_kinds import Condition, Metadata
from cedana_sched.kube.resources import Resource

DISRUPTION_BUDGETS: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
REPLICA_SETS: Final = Resource("apps/v1", "ReplicaSet", "replicasets")
STATEFUL_SETS: Final = Resource("apps/v1", "StatefulSet", "statefulsets")

TAINT: Final = "DeletionByTaintManager"
EVICTION_API: Final = "EvictionByEvictionAPI"
"""Reasons of the condition `DisruptionTarget`: Kubernetes, "Pod disruption conditions"."""

ALWAYS_ALLOW: Final = "AlwaysAllow"
"""A budget's policy by which pods that are not ready are evicted whatever the budget is."""


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class LabelledMetadata(Metadata, frozen=True):
    """Metadata with all labels: selectors may select by any of them."""

    def __post_init__(self) -> None:
        """Drop only annotations that no component reads."""
        labels = self.labels
        Metadata.__post_init__(self)
        msgspec.structs.force_setattr(self, "labels", labels)


class Namespace(_Struct, frozen=True):
    metadata: LabelledMetadata


class BudgetSpec(_Struct, frozen=True):
    unhealthy_pod_eviction_policy: str | None = None


class BudgetStatus(_Struct, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    observed_generation: int = 0


class DisruptionBudget(_Struct, frozen=True):
    """A PodDisruptionBudget, without its selector, which may be large."""

    metadata: Metadata
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()

    def allows(self, *, is_ready: bool, in_flight: int = 0) -> bool:
        """Return whether one more of its pods may be evicted now, as `pods/eviction` decides.

        Args:
            is_ready: whether the pod is ready, and so counts as healthy.
            in_flight: number of its healthy pods whose eviction has begun, and that are not deleted yet.
        """
        status = self.status
        if not is_ready and (
            self.spec.unhealthy_pod_eviction_policy == ALWAYS_ALLOW
            or status.current_healthy >= status.desired_healthy > 0
        ):
            return True
        is_current = status.observed_generation >= self.metadata.generation
        return is_current and status.disruptions_allowed > in_flight


class SelectorSpec(_Struct, frozen=True):
    """Without a selector a budget counts no pod."""

    selector: dict[str, Any] | None = None


class BudgetSelector(_Struct, frozen=True):
    """A PodDisruptionBudget, reduced to its selector."""

    spec: SelectorSpec = SelectorSpec()


class JobStatus(_Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class Job(_Struct, frozen=True):
    """A Job, reduced to what shows whether it continues."""

    metadata: Metadata
    status: JobStatus = JobStatus()

    @property
    def ends(self) -> bool:
        """Return whether it has ended, or is about to."""
        ended = {"Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"}
        return any(one.type in ended and one.status == "True" for one in self.status.conditions)


class Ordinals(_Struct, frozen=True):
    start: int = 0


class RollingUpdate(_Struct, frozen=True):
    partition: int = 0


class UpdateStrategy(_Struct, frozen=True):
    rolling_update: RollingUpdate | None = None


class StatefulSetSpec(_Struct, frozen=True):
    replicas: int = 1
    ordinals: Ordinals | None = None
    update_strategy: UpdateStrategy = UpdateStrategy()

    @property
    def partition(self) -> int:
        """Return the first ordinal that a rollout replaces."""
        rolling = self.update_strategy.rolling_update
        return rolling.partition if rolling is not None else 0


class StatefulSetStatus(_Struct, frozen=True):
    current_revision: str = ""
    update_revision: str = ""


class StatefulSet(_Struct, frozen=True):
    metadata: Metadata
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class ReplicaSetSpec(_Struct, frozen=True):
    replicas: int = 1
    selector: dict[str, Any] | None = None


class ReplicaSet(_Struct, frozen=True):
    metadata: Metadata
    spec: ReplicaSetSpec = ReplicaSetSpec()
