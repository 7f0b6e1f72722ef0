"""The cluster's CheckpointPolicies, from an informer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import reduce

import structlog
from pydantic import ValidationError

from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.events import ObjectEvent
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.kube.resources import CHECKPOINT_POLICIES
from cedana_sched.kube.response_decoding import Unreadable, UnreadableSink
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.deadline_cap import cap_deadlines
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import parse_stored_object
from cedana_sched.model.objects.checkpoint_policy import (
    DEFAULT,
    CheckpointPolicySpec,
    chosen_policy_name,
    effective_policy,
    ineffective_fields,
    read_spec,
    restrict_policy,
)
from cedana_sched.model.objects.field_names import api_name
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS, CheckpointPolicy

log = structlog.get_logger(__name__)

_INTERVAL = api_name("interval_seconds")


class ClusterPolicies:
    """Implements `adapter.cluster_contract.Policies`. Run `run` as a task.

    Args:
        longest_deadline_seconds: cap on every deadline, whatever a policy contains.
        unreadable: called for each policy that cannot be read.
        publish: publishes a policy's fields without effect.
    """

    def __init__(
        self,
        api: Api,
        longest_deadline_seconds: float = LONGEST_DEADLINE_SECONDS,
        unreadable: UnreadableSink = lambda resource, one: None,  # noqa: ARG005
        publish: Callable[[ObjectEvent], None] = lambda one: None,  # noqa: ARG005
    ) -> None:
        self._longest_seconds = longest_deadline_seconds
        self._unreadable = unreadable
        self._publish = publish
        self._queue_policies: list[Callable[[Pod], str | None]] = []
        self._informer = Informer(Watch(api, CHECKPOINT_POLICIES, CachedPolicy), unreadable)
        self._informer.subscribe(self._on_policy_changed)
        self.synced = self._informer.synced

    async def run(self) -> None:
        await self._informer.run()

    @property
    def unsynced_reason(self) -> str | None:
        """See `Informer.unsynced_reason`."""
        return self._informer.unsynced_reason

    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        """See `adapter.cluster_contract.Policies`."""
        return cap_deadlines(self._policy_or_default(name, namespace), self._longest_seconds)

    def subscribe(self, sink: Callable[[], None]) -> None:
        """Call `sink` when a policy has changed. It must not block."""
        self._informer.subscribe(lambda before, now: sink())  # noqa: ARG005

    def has_intervals(self) -> bool:
        """Return whether any policy has an interval, so that pods may have to be saved periodically."""
        return any(policy.spec.get(_INTERVAL) is not None for policy in self._informer)

    def add_queue_policy_source(self, queue_policy: Callable[[Pod], str | None]) -> None:
        """Register a source for the policy of a pod's queue (`QueuePolicies`), used by `policy_of_pod`."""
        self._queue_policies.append(queue_policy)

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        """See `adapter.cluster_contract.Policies`."""
        annotations, namespace = pod.metadata.annotations, pod.metadata.namespace
        of_queues = {name for queue_policy in self._queue_policies if (name := queue_policy(pod))}
        at_creation = annotations.get(names.QUEUE_POLICY)
        if of_queues <= {at_creation}:
            return self.policy_named(self.chosen_policy_of(annotations), namespace)
        own = annotations.get(names.POLICY, "")
        if own == at_creation:  # the queue's policy at creation, not the pod's own choice
            own = ""
        in_effect = [{names.POLICY: own, names.QUEUE_POLICY: of_queue} for of_queue in sorted(of_queues)]
        if at_creation and self._informer.get(at_creation) is not None:
            in_effect.append(annotations)
        # a tenant may have written any of them: a scheduler's object, or the annotation at creation
        return reduce(restrict_policy, (self.policy_named(self.chosen_policy_of(one), namespace) for one in in_effect))

    def chosen_policy_of(self, annotations: Mapping[str, str]) -> str | None:
        """Return the policy name for a pod with these annotations that no webhook mutated; None: none is named."""
        return chosen_policy_name(annotations, self._find_spec)

    def _find_spec(self, name: str) -> CheckpointPolicySpec:
        """Return its spec; the empty spec if it does not exist or cannot be read."""
        found = self._informer.get(name)
        with suppress(UsageError):
            return CheckpointPolicySpec() if found is None else read_spec(name, found.spec)
        return CheckpointPolicySpec()

    def _policy_or_default(self, name: str | None, namespace: str) -> CheckpointPolicy:
        for candidate in (name, DEFAULT):
            found = self._informer.get(candidate) if candidate else None
            if candidate is None or found is None:
                continue
            try:
                return effective_policy(candidate, read_spec(candidate, found.spec), namespace).policy
            except UsageError as error:
                # our webhook refuses invalid policies; it may have been down, or the policy changed since
                log.warning("policy does not count", policy=candidate, namespace=namespace, error=str(error))
        return CheckpointPolicy()

    def _on_policy_changed(self, before: CachedPolicy | None, now: CachedPolicy | None) -> None:
        """Report unreadable policies: our webhook refuses them, but may have been down."""
        if now is None:
            return
        try:
            spec = parse_stored_object(CheckpointPolicySpec, now.spec)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            problem = f"{'.'.join(('spec', *map(str, first['loc'])))}: {first['msg']}"
            log.warning("policy cannot be read", policy=now.metadata.name, error=problem)
            self._unreadable(CHECKPOINT_POLICIES, Unreadable(now.metadata, problem))
            return
        if before is None or before.spec != now.spec:
            self._publish_ineffective_fields(now.metadata, spec)

    def _publish_ineffective_fields(self, metadata: Metadata, spec: CheckpointPolicySpec) -> None:
        """Report fields without effect: our webhook warns only on writes, and the policy may be older."""
        if fields := ineffective_fields(metadata.name, spec):
            log.warning("fields of a policy apply to no pod", policy=metadata.name, fields=fields)
            text = f"{', '.join(fields)}: applies to no pod: select namespaces in spec.allowedNamespaces"
            reference = CHECKPOINT_POLICIES.reference(metadata.name, uid=metadata.uid)
            self._publish(ObjectEvent(reference, "FieldsIgnored", text, warning=True))
