"""Namespaces that protect all of their pods: an admin labels a namespace with `names.PROTECT`, users change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched_webhooks.opt_in import OptIn, Protection


class NamespaceOptIn(OptIn):
    """Admission handler for pods at CREATE.

    Args:
        namespace: returns a Namespace by its name; None if it does not exist or is not cached yet.
        is_ours: whether the adapter is responsible for pods with this scheduler and these labels.
        served: namespaces whose pods are mutated.
    """

    def __init__(
        self,
        namespace: Callable[[str], PartialObject | None],
        is_ours: Callable[[str, Mapping[str, str]], bool],
        served: ServedNamespaces,
    ) -> None:
        super().__init__(self._protection_by_namespace, served)
        self._namespace = namespace
        self._is_ours = is_ours

    def policy_of(self, name: str) -> str | None:
        """Return the policy of a namespace that protects all of its pods; None if it names none."""
        found = self._namespace(name)
        if found is None or not is_protecting(found):
            return None
        return found.metadata.annotations.get(names.POLICY) or None

    def _protection_by_namespace(self, pod: Object, namespace: str) -> Protection | None:
        found = self._namespace(namespace)
        if found is None or not is_protecting(found):
            return None
        if not self._is_ours(pod["spec"].get("schedulerName") or "", pod["metadata"].get("labels") or {}):
            return None
        return Protection(found.metadata.annotations.get(names.POLICY) or None)


def is_protecting(namespace: PartialObject) -> bool:
    """Return whether the namespace protects all of its pods."""
    return namespace.metadata.labels.get(names.PROTECT) == "true"
