"""What a budget does not show yet counts until it does, and not for ever."""

from __future__ import annotations

import pytest

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched_kubernetes.budget_lag import LONGEST_SECONDS, BudgetLag
from cedana_sched_kubernetes.objects import DisruptionBudget


def budget(name: str = "md", namespace: str = "bio") -> DisruptionBudget:
    return DisruptionBudget(Metadata(name=name, namespace=namespace))


@pytest.mark.parametrize("now", [None, budget()], ids=["deleted", "updated"])
def test_pods_count_until_their_budget_changes(now: DisruptionBudget | None) -> None:
    lag = BudgetLag()
    lag.add(budget(), "a")
    lag.add(budget(), "b")
    lag.add(budget(namespace="lab"), "c")
    lag.on_budget_change(budget(namespace="other"), None)
    assert lag.unshown_pods(budget()) == {"a", "b"}
    lag.on_budget_change(budget(), now)
    assert lag.unshown_pods(budget()) == set()
    assert lag.unshown_pods(budget(namespace="lab")) == {"c"}


def test_pods_do_not_count_for_ever() -> None:
    now = 7.0
    lag = BudgetLag(lambda: now)
    lag.add(budget(), "a")
    now += LONGEST_SECONDS - 1
    lag.add(budget(), "b")
    assert lag.unshown_pods(budget()) == {"a", "b"}
    now += 1
    assert lag.unshown_pods(budget()) == {"b"}
