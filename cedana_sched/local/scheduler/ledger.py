"""Quota usage of the cohort: Kueue's quota arithmetic for one flat cohort, as a ledger for simulations.

Source of the rules: Kueue v0.19, pkg/cache/scheduler/resource_node.go and fair_sharing.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from cedana_sched.local.scheduler.resources import Resource, Resources
from cedana_sched.local.scheduler.scheduling_types import Cohort, Group

Share = tuple[bool, float]
"""A comparable dominant resource share: whether a group of weight 0 borrows, then the share in thousandths."""

NO_SHARE: Share = (False, 0.0)


class Ledger:
    """Usage by group. Mutable on purpose: a search adds and removes jobs, and reverts its changes."""

    def __init__(self, cohort: Cohort, usage: Iterable[tuple[str, Resources]] = ()) -> None:
        self.cohort = cohort
        self._used = dict.fromkeys(cohort.groups, Resources())
        self._lendable = {r: sum(_lendable_quota(g, r) for g in cohort.groups.values()) for r in Resource}
        for group, request in usage:
            self.add(group, request)

    def add(self, group: str, request: Resources) -> None:
        self._used[group] = self._used.get(group, Resources()) + request

    def remove(self, group: str, request: Resources) -> None:
        self._used[group] -= request

    def used(self, group: str) -> Resources:
        return self._used[group]

    def available(self, name: str, resource: Resource) -> int:
        """Return how much more the group may use: unused plus borrowable quota. Negative if over-admitted."""
        group = self.cohort.groups[name]
        used = self._used[name][resource]
        kept = group.nominal[resource] - _lendable_quota(group, resource)
        from_cohort = self._lendable[resource] - self._lent_quota_used(resource)
        if (limit := group.borrowing_limit[resource]) is not None:
            from_cohort = min(from_cohort, _lendable_quota(group, resource) - max(0, used - kept) + limit)
        return max(0, kept - used) + from_cohort

    def lacking(self, group: str, request: Resources) -> frozenset[Resource]:
        """Return the resources of which the group has too little available for `request`."""
        return frozenset(r for r in Resource if request[r] > self.available(group, r))

    def fits(self, group: str, request: Resources, *, may_borrow: bool = True) -> bool:
        return not self.lacking(group, request) and (may_borrow or self.within_nominal(group, request))

    def within_nominal(self, group: str, request: Resources) -> bool:
        """Whether the group's usage plus `request` needs no borrowing."""
        nominal, used = self.cohort.groups[group].nominal, self._used[group]
        return all(used[r] + request[r] <= nominal[r] for r in Resource)

    def below_nominal(self, group: str, resources: Iterable[Resource]) -> bool:
        """Whether the group has unused nominal quota of each of `resources`."""
        nominal, used = self.cohort.groups[group].nominal, self._used[group]
        return all(used[r] < nominal[r] for r in resources)

    def borrows(self, group: str, resources: Iterable[Resource] = tuple(Resource)) -> bool:
        """Whether the group uses more than its nominal quota of any of `resources`."""
        return any(self.borrowed(group)[r] > 0 for r in resources)

    def borrowed(self, group: str) -> Resources:
        over = self._used[group] - self.cohort.groups[group].nominal
        return Resources(max(0, over.cpu), max(0, over.memory))

    def dominant_share_of(self, group: str) -> Share:
        """Return the group's dominant resource share: its largest borrowed part of lendable quota, over its weight."""
        weight = self.cohort.groups[group].weight
        borrowed = self.borrowed(group)
        ratios = [borrowed[r] * 1000 / self._lendable[r] for r in Resource if self._lendable[r] > 0]
        ratio = max(ratios, default=0.0)
        if weight == 0:
            return (True, ratio) if self.borrows(group) else NO_SHARE
        return (False, ratio / weight)

    def share_with(self, group: str, request: Resources) -> Share:
        """Return the group's share with `request` added."""
        self.add(group, request)
        share = self.dominant_share_of(group)
        self.remove(group, request)
        return share

    def share_without(self, group: str, request: Resources) -> Share:
        """Return the group's share with `request` removed."""
        return self.share_with(group, Resources() - request)

    def _lent_quota_used(self, resource: Resource) -> int:
        """Return the usage of all groups out of the quota that is lent to the cohort."""
        total = 0
        for name, used in self._used.items():
            group = self.cohort.groups.get(name)  # a group may be removed from the configuration while its jobs run
            kept = group.nominal[resource] - _lendable_quota(group, resource) if group else 0
            total += max(0, used[resource] - kept)
        return total


def _lendable_quota(group: Group, resource: Resource) -> int:
    """Return the quota that the group lends to the cohort; only the group itself may use the rest."""
    limit = group.lending_limit[resource]
    return group.nominal[resource] if limit is None else min(limit, group.nominal[resource])


def maximum_usage(cohort: Cohort, group: str) -> Resources:
    """Return the group's maximum usage, with all other groups idle."""
    empty = Ledger(cohort)
    return Resources(empty.available(group, Resource.CPU), empty.available(group, Resource.MEMORY))
