"""Which policy opts in a pod by its labels: an admin writes `podSelector` into a CheckpointPolicy.

The author of a pod chooses its labels, and so may opt it in, as by an id. A policy selects only in namespaces that may
use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.label_selector import selects
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.checkpoint_policy import CheckpointPolicySpec, may_namespace_use, read_spec
from cedana_sched_kubernetes.objects import Namespace


class _Selection(msgspec.Struct, frozen=True):
    """The selectors of one policy as JSON; `namespaces` is None if the policy selects in all that may use it."""

    spec: CheckpointPolicySpec
    pods: Mapping[str, Any]
    namespaces: Mapping[str, Any] | None

    @property
    def conditions(self) -> tuple[Any, ...]:
        """What pods and namespaces have to be."""
        return self.pods, self.namespaces, self.spec.allowed_namespaces

    def is_selecting_in(self, policy: str, name: str, namespace: Namespace | None) -> bool:
        """Return whether the policy of that name selects pods in the namespace of that name; None: it is not known."""
        if not may_namespace_use(policy, self.spec, name):
            return False
        if self.namespaces is None:
            return True
        return namespace is not None and selects(self.namespaces, namespace.metadata.labels)


class PolicySelectors:
    """The selectors of all policies; subscribe `on_policy_change` to them.

    Args:
        namespace: returns a Namespace by its name; None if it does not exist or is not cached yet.
    """

    def __init__(self, namespace: Callable[[str], Namespace | None]) -> None:
        self._namespace = namespace
        self._selections: dict[str, _Selection] = {}

    def on_policy_change(self, before: CachedPolicy | None, now: CachedPolicy | None) -> None:
        """Read the selectors of a policy; one that cannot be read selects nothing."""
        if (policy := now or before) is None:
            return
        self._selections.pop(policy.metadata.name, None)
        if now is not None and (selection := _read_selection(now)) is not None:
            self._selections[now.metadata.name] = selection

    def policies_selecting(self, labels: Mapping[str, str], namespace: str) -> list[str]:
        """Return the policies that select a pod with these labels, by name; the first one applies."""
        return sorted(
            name
            for name, selection in self._selections.items()
            if selects(selection.pods, labels) and self.is_selecting_in(name, namespace)
        )

    def is_selecting_in(self, policy: str, namespace: str) -> bool:
        """Return whether the policy selects pods in that namespace."""
        selection = self._selections.get(policy)
        return selection is not None and selection.is_selecting_in(policy, namespace, self._namespace(namespace))

    def policies_selecting_in(self, namespace: Namespace) -> set[str]:
        """Return the policies that select pods in a namespace with these labels."""
        name = namespace.metadata.name
        return {
            policy
            for policy, selection in self._selections.items()
            if selection.is_selecting_in(policy, name, namespace)
        }


def is_selecting_more(before: CachedPolicy | None, now: CachedPolicy) -> bool:
    """Return whether a policy may select further pods since it has changed; `before` is None if it is new."""
    selection = _read_selection(now)
    earlier = None if before is None else _read_selection(before)
    return selection is not None and (earlier is None or selection.conditions != earlier.conditions)


def _read_selection(policy: CachedPolicy) -> _Selection | None:
    try:
        spec = read_spec(policy.metadata.name, policy.spec)
    except UsageError:  # the coordinator publishes it
        return None
    if spec.pod_selector is None:
        return None
    for key in spec.pod_selector.keys:
        register_cached_key(key)
    namespaces = spec.namespace_selector
    return _Selection(spec, spec.pod_selector.to_json(), None if namespaces is None else namespaces.to_json())
