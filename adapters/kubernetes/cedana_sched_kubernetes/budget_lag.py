"""Pods that have ceased to be healthy, and that the status of their PodDisruptionBudget still counts.

The disruption controller writes the status a moment after the pod has changed. Until then, what the budget allows is
more than what may still be evicted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cedana_sched_kubernetes.objects import DisruptionBudget

LONGEST_SECONDS: Final = 30.0
"""How long the controller takes at most. A status that is seen before the change of the pod may show it: then no other
one may follow."""

_Key = tuple[str, str]
"""Namespace and name of a budget."""


class BudgetLag:
    """What budgets do not show yet; subscribe `on_budget_change` to them.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unshown: dict[_Key, dict[str, float]] = {}
        """By uid of the pod: since when."""

    def add(self, budget: DisruptionBudget, uid: str) -> None:
        """Record that a healthy pod of the budget has ended, or is no longer ready."""
        self._unshown.setdefault(_key_of(budget), {})[uid] = self._clock()

    def on_budget_change(self, before: DisruptionBudget | None, now: DisruptionBudget | None) -> None:
        """Record that the budget's status shows all; a sink for `Informer.subscribe`."""
        if (budget := now or before) is not None:
            self._unshown.pop(_key_of(budget), None)

    def unshown_pods(self, budget: DisruptionBudget) -> set[str]:
        """Return the uids of the pods that the budget's status still counts as healthy."""
        begins_at = self._clock() - LONGEST_SECONDS
        return {uid for uid, since in self._unshown.get(_key_of(budget), {}).items() if since > begins_at}


def _key_of(budget: DisruptionBudget) -> _Key:
    return budget.metadata.namespace, budget.metadata.name
