"""CheckpointPolicy of a new pod: its queue's, chosen by an admin, or the one that the pod names."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cedana_sched.model.deadline_cap import cap_deadlines
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint_policy import DEFAULT, PodDefaults, chosen_policy_name
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched_webhooks.caches import AdmissionCaches


class Choice(msgspec.Struct, frozen=True):
    """Chosen policy; `name` is None if neither the queue nor the pod names one."""

    name: str | None
    policy: CheckpointPolicy
    warnings: tuple[str, ...] = ()
    pod_defaults: PodDefaults = PodDefaults()


def choose_policy(annotations: Mapping[str, str], namespace: str, caches: AdmissionCaches) -> Choice:
    """Return the policy of a pod with these annotations.

    Raises:
        UsageError: the policy does not exist, cannot be read, or is not allowed in that namespace.
    """
    own, name = annotations.get(names.POLICY), chosen_policy_name(annotations, caches.policy_spec)
    policy, withheld = caches.policy_for_pods(name, namespace)
    warnings = [_overruled_warning(own, name)] if own and name and own != name else []
    if name and withheld:
        warnings.append(_withheld_fields_warning(name, withheld))
    return Choice(name, policy, tuple(warnings), caches.pod_defaults_for_pods(name))


def choose_policy_for_restore(annotations: Mapping[str, str], namespace: str, caches: AdmissionCaches) -> Choice:
    """Return the policy of a pod that has a snapshot to restore: `default` if its own does not apply.

    Without protection the pod would start cold despite its snapshot. The signal of its next preemption follows the
    same rule.
    """
    try:
        return choose_policy(annotations, namespace, caches)
    except UsageError as error:
        warning = f"cedana: the policy {DEFAULT!r} counts: {error}"
        name, policy = _policy_name_to_write(annotations, caches), _default_policy(namespace, caches)
        return Choice(name, policy, (warning,), _default_pod_defaults(caches))


def _policy_name_to_write(annotations: Mapping[str, str], caches: AdmissionCaches) -> str | None:
    """Return the name to write on the pod, so that the pod's own name does not take precedence over its queue's."""
    try:
        return chosen_policy_name(annotations, caches.policy_spec)
    except UsageError:  # the queue's policy has no valid `podsMayChoose`
        return annotations[names.QUEUE_POLICY]


def _default_policy(namespace: str, caches: AdmissionCaches) -> CheckpointPolicy:
    try:
        return caches.policy_for_pods(None, namespace).policy
    except UsageError:  # the policy `default` cannot be read
        return cap_deadlines(CheckpointPolicy(), caches.longest_seconds)


def _default_pod_defaults(caches: AdmissionCaches) -> PodDefaults:
    try:
        return caches.pod_defaults_for_pods(None)
    except UsageError:  # as above
        return PodDefaults()


def _overruled_warning(own: str, of_queue: str) -> str:
    problem = f"does not count: the queue's policy is {of_queue!r}, which does not say podsMayChoose"
    return _policy_warning(own, problem, "leave it out")


def _withheld_fields_warning(name: str, fields: tuple[str, ...]) -> str:
    problem = f"says {', '.join(fields)}, which applies to no pod"
    return _policy_warning(name, problem, "have an admin write its spec.allowedNamespaces")


def _policy_warning(name: str, problem: str, remedy: str) -> str:
    return f"cedana: {UsageError(f'metadata.annotations[{names.POLICY}]', name, problem, remedy=remedy)}"
