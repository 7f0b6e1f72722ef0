"""The section `kubernetes` of the adapters' settings: which pods are another adapter's, and who opts in pods."""

from __future__ import annotations

from collections.abc import Mapping

from cedana_sched.model.objects.base import UserWritten


class Settings(UserWritten):
    """The same for the coordinator and the webhooks."""

    other_schedulers: frozenset[str] = frozenset()
    """Values of `spec.schedulerName` whose pods are another adapter's."""
    other_labels: frozenset[str] = frozenset()
    """Labels whose pods are another adapter's."""
    other_job_labels: frozenset[str] = frozenset()
    """Labels of Jobs whose pods are another adapter's."""
    pod_selectors: bool = False
    """Whether policies opt in pods by their `podSelector`; if so, webhooks must be called for all new pods and Jobs."""

    def is_ours(self, scheduler: str, labels: Mapping[str, str]) -> bool:
        """Return whether a pod with this scheduler and these labels is one of this adapter."""
        return scheduler not in self.other_schedulers and not self.other_labels & labels.keys()

    def is_ours_as_job(self, labels: Mapping[str, str], scheduler: str, pod_labels: Mapping[str, str]) -> bool:
        """Return whether the pods of a Job with these labels, this scheduler and these labels of its pods are ours."""
        return not self.other_job_labels & labels.keys() and self.is_ours(scheduler, pod_labels)
