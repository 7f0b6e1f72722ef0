"""Pods that an admin protects: those that a policy selects, and all of a namespace with the label `names.PROTECT`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.model.objects.protect_mark import is_protecting
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched_kubernetes.objects import Namespace
from cedana_sched_kubernetes.policy_selectors import PolicySelectors
from cedana_sched_kubernetes.settings import Settings
from cedana_sched_webhooks.opt_in import OptIn, Protection


class AdminOptIn(OptIn):
    """Admission handler for pods at CREATE. A policy that selects a pod precedes the pod's namespace.

    Args:
        namespace: returns a Namespace by its name; None if it does not exist or is not cached yet.
        selectors: of the policies.
        settings: which pods are another adapter's.
        served: namespaces whose pods are mutated.
    """

    def __init__(
        self,
        namespace: Callable[[str], Namespace | None],
        selectors: PolicySelectors,
        settings: Settings,
        served: ServedNamespaces,
    ) -> None:
        super().__init__(self._protection_of_pod, served, is_only_source=self._is_ours)
        self._namespace = namespace
        self._selectors = selectors
        self._settings = settings

    def queue_policy_of(self, pod: Pod) -> str | None:
        """Return the policy that an admin chose for a pod; None if there is none.

        A pod keeps the policy that selected it at its creation: its labels may change, and not all are cached. On the
        pods of other adapters it is not this adapter that wrote it.
        """
        at_creation, namespace = pod.metadata.annotations.get(names.QUEUE_POLICY, ""), pod.metadata.namespace
        is_ours = self._settings.is_ours(pod.spec.scheduler_name, pod.metadata.labels)
        if is_ours and self._selectors.is_selecting_in(at_creation, namespace):
            return at_creation
        protection = self._protection_by_namespace(namespace)
        return None if protection is None else protection.policy

    def protects_more(self, before: Namespace | None, now: Namespace) -> bool:
        """Return whether pods of a namespace may be protected since it has changed; `before` is None if it is new."""
        if before is None:
            return is_protecting(now.metadata.labels) or bool(self._selectors.policies_selecting_in(now))
        if is_protecting(now.metadata.labels) and not is_protecting(before.metadata.labels):
            return True
        return bool(self._selectors.policies_selecting_in(now) - self._selectors.policies_selecting_in(before))

    def is_job_protected(self, job: Object, namespace: str) -> bool:
        """Return whether the pods of a Job, which names no id, will be protected."""
        template = job["spec"]["template"]
        labels, scheduler = _labels_of(template), _scheduler_of(template)
        if not self._settings.is_ours_as_job(_labels_of(job), scheduler, labels):
            return False
        return self._find_protection(labels, namespace) is not None

    def _protection_of_pod(self, pod: Object, namespace: str) -> Protection | None:
        return self._find_protection(_labels_of(pod), namespace) if self._is_ours(pod) else None

    def _is_ours(self, pod: Object) -> bool:
        return self._settings.is_ours(_scheduler_of(pod), _labels_of(pod))

    def _find_protection(self, labels: Mapping[str, str], namespace: str) -> Protection | None:
        if found := self._selectors.policies_selecting(labels, namespace):
            return Protection(found[0], warnings=_several_policies_warning(found))
        return self._protection_by_namespace(namespace)

    def _protection_by_namespace(self, name: str) -> Protection | None:
        found = self._namespace(name)
        if found is None or not is_protecting(found.metadata.labels):
            return None
        return Protection(found.metadata.annotations.get(names.POLICY) or None)


def _several_policies_warning(policies: list[str]) -> tuple[str, ...]:
    if len(policies) == 1:
        return ()
    chosen, *others = policies
    remedy = f"have an admin narrow spec.podSelector of {', '.join(others)}"
    return (f"cedana: policies {', '.join(policies)} select the pod: {chosen!r} applies, the first by name ({remedy})",)


def _labels_of(body: Object) -> Mapping[str, str]:
    return (body.get("metadata") or {}).get("labels") or {}


def _scheduler_of(body: Object) -> str:
    return (body.get("spec") or {}).get("schedulerName") or ""
