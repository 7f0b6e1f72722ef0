"""A budget allows an eviction exactly when `pods/eviction` would."""

from __future__ import annotations

import pytest

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched_kubernetes.objects import BudgetSpec, BudgetStatus, DisruptionBudget


def budget(allowed: int = 1, *, healthy: int = 3, desired: int = 2, policy: str | None = None) -> DisruptionBudget:
    status = BudgetStatus(allowed, healthy, desired, observed_generation=1)
    return DisruptionBudget(Metadata(name="md", generation=1), BudgetSpec(policy), status)


@pytest.mark.parametrize(
    ("allowed", "in_flight", "is_allowed"), [(0, 0, False), (1, 0, True), (1, 1, False), (2, 1, True)]
)
def test_as_many_healthy_pods_as_it_allows_less_those_in_flight(allowed: int, in_flight: int, is_allowed: bool) -> None:
    assert budget(allowed).allows(is_ready=True, in_flight=in_flight) is is_allowed


@pytest.mark.parametrize(
    ("healthy", "desired", "policy", "is_allowed"),
    [
        (2, 2, None, True),
        (1, 2, None, False),
        (0, 0, None, False),
        (1, 2, "AlwaysAllow", True),
        (1, 2, "IfHealthyBudget", False),
    ],
)
def test_unhealthy_pod_goes_if_the_others_suffice(
    healthy: int, desired: int, policy: str | None, is_allowed: bool
) -> None:
    assert budget(0, healthy=healthy, desired=desired, policy=policy).allows(is_ready=False) is is_allowed


def test_budget_that_its_controller_has_not_seen_allows_nothing() -> None:
    assert not DisruptionBudget(Metadata(generation=2), status=BudgetStatus(1, observed_generation=1)).allows(
        is_ready=True
    )
