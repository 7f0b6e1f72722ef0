"""Which CheckpointPolicy a new pod has: its queue's, which an admin has chosen, or the one that the pod names."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cedana_sched.model.deadline_cap import capped
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint_policy import DEFAULT, chosen
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched_webhooks.knowledge import Knowledge


class Choice(msgspec.Struct, frozen=True):
    """`name` is None where nobody named one."""

    name: str | None
    policy: CheckpointPolicy
    warnings: tuple[str, ...] = ()


def choose(annotations: Mapping[str, str], namespace: str, knowledge: Knowledge) -> Choice:
    """The policy of a pod with these annotations.

    Raises:
        UsageError: there is none of that name, it cannot be read, or it is not for that namespace.
    """
    own, name = annotations.get(names.POLICY), chosen(annotations, knowledge.policy_spec)
    policy, withheld = knowledge.policy(name, namespace)
    warnings = [_overruled(own, name)] if own and name and own != name else []
    if name and withheld:
        warnings.append(_withheld(name, withheld))
    return Choice(name, policy, tuple(warnings))


def choose_at_return(annotations: Mapping[str, str], namespace: str, knowledge: Knowledge) -> Choice:
    """The policy of a pod that has a snapshot to continue from: `default` where its own is none for it.

    Without protection it would begin anew beside its snapshot. Who signals its next preemption does the same.
    """
    try:
        return choose(annotations, namespace, knowledge)
    except UsageError as error:
        warning = f"cedana: the policy {DEFAULT!r} counts: {error}"
        return Choice(_chosen(annotations, knowledge), _default(namespace, knowledge), (warning,))


def _chosen(annotations: Mapping[str, str], knowledge: Knowledge) -> str | None:
    """The name to write on the pod, so that nobody takes its own for one that may go before its queue's."""
    try:
        return chosen(annotations, knowledge.policy_spec)
    except UsageError:  # its queue's does not say whether pods may choose
        return annotations[names.QUEUE_POLICY]


def _default(namespace: str, knowledge: Knowledge) -> CheckpointPolicy:
    try:
        return knowledge.policy(None, namespace).policy
    except UsageError:  # it cannot be read
        return capped(CheckpointPolicy(), knowledge.longest_seconds)


def _overruled(own: str, of_queue: str) -> str:
    problem = f"does not count: the queue's policy is {of_queue!r}, which does not say podsMayChoose"
    return _said(own, problem, "leave it out")


def _withheld(name: str, fields: tuple[str, ...]) -> str:
    problem = f"says {', '.join(fields)}, which counts for nobody"
    return _said(name, problem, "have an admin write its spec.allowedNamespaces")


def _said(name: str, problem: str, remedy: str) -> str:
    return f"cedana: {UsageError(f'metadata.annotations[{names.POLICY}]', name, problem, remedy=remedy)}"
