"""The section `kubernetes` of the adapters' settings: which pods are another adapter's."""

from __future__ import annotations

from collections.abc import Mapping

from cedana_sched.model.objects.base import UserWritten


class Settings(UserWritten):
    """The same for the coordinator and the webhooks."""

    other_schedulers: frozenset[str] = frozenset()
    """Values of `spec.schedulerName` whose pods are another adapter's."""
    other_labels: frozenset[str] = frozenset()
    """Labels whose pods are another adapter's."""

    def is_ours(self, scheduler: str, labels: Mapping[str, str]) -> bool:
        """Return whether a pod with this scheduler and these labels is in the hands of this adapter."""
        return scheduler not in self.other_schedulers and not self.other_labels & labels.keys()
