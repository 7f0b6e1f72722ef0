"""Mutation of a pod at CREATE. A pod is never refused: an ambiguous one gets a warning, and starts.

A first start gets its identity, and the preStop hook by which it can be held; a pod with a snapshot also gets what a
restore needs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.kube.kept import kept
from cedana_sched.kube.placement import cpus_that_can_continue, require_one_of
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import is_shared
from cedana_sched.model.objects import names
from cedana_sched_webhooks import injection
from cedana_sched_webhooks.admission import LARGEST_BYTES, Answer, Request
from cedana_sched_webhooks.configuration import Configuration
from cedana_sched_webhooks.continuation import (
    Continuation,
    asked_for,
    continuation_among,
    continuation_from,
    continuation_of,
)
from cedana_sched_webhooks.identity import Replica, replica_of, without_other_variables
from cedana_sched_webhooks.json_patch import difference
from cedana_sched_webhooks.knowledge import Knowledge
from cedana_sched_webhooks.policies import choose, choose_at_return
from cedana_sched_webhooks.reserved import put_ours, refuse_foreign_use, remove_ours
from cedana_sched_webhooks.shapes import MIRROR
from cedana_sched_webhooks.siblings import Apart, Siblings

ENFORCED: Final = kept("pod-security.kubernetes.io/enforce")
FORBIDS_HOST: Final = frozenset({"baseline", "restricted"})
"""Pod Security levels that forbid a lifecycle handler with `host`."""
MOST_CONTAINERS: Final = 256
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
TOO_LARGE: Final = (
    f"the pod has more than {LARGEST_BYTES >> 10} KiB, or more than {MOST_CONTAINERS} containers "
    "(mount what is long from a ConfigMap)"
)


class PodAdmission:
    """Admission handler for pods at CREATE."""

    def __init__(self, knowledge: Knowledge, configuration: Configuration, siblings: Siblings) -> None:
        self._knowledge = knowledge
        self._configuration = configuration
        self._siblings = siblings

    async def answer(self, request: Request) -> Answer:
        """Return the mutation of the pod."""
        pod, namespace = request.object, request.namespace
        is_ours = pod is not None and _concerns_us(pod, namespace, self._configuration)
        if pod is None or not is_ours or _is_large(request, pod) or not _is_protected(pod):
            return answer(request, self._knowledge, self._configuration)
        # kept encoded during the API call: decoded it is many times larger, and many requests may wait
        parked = msgspec.json.encode(msgspec.structs.replace(request, object=without_other_variables(pod)))
        asking = self._siblings.told_apart(pod, namespace)
        del pod, request
        apart = await asking
        return answer(msgspec.json.decode(parked, type=Request), self._knowledge, self._configuration, apart)


def answer(request: Request, knowledge: Knowledge, configuration: Configuration, apart: Apart | None = None) -> Answer:
    """Return the mutation of the pod; `apart` distinguishes it from others if its labels do not."""
    pod = request.object
    if pod is None or not _concerns_us(pod, request.namespace, configuration):
        return Answer("not-ours")
    if _is_large(request, pod):
        return _large(pod)
    try:
        told = apart or Apart()
        replica = replica_of(pod, told.by_chance, told.job)
        if replica is None:
            return _unmarked(pod, Answer("not-ours"))
        refuse_foreign_use(pod)
        _refuse_own_users(pod)
        alone = told.by_chance is None
        return _prepare(pod, request.namespace, replica, knowledge, configuration, alone=alone)
    except UsageError as error:
        return _refused(pod, str(error))


def _is_large(request: Request, pod: Object) -> bool:
    spec = pod.get("spec") or {}
    return request.is_large or any(len(spec.get(kind) or ()) > MOST_CONTAINERS for kind in _CONTAINERS)


def _large(pod: Object) -> Answer:
    """Mark the pod as unprotected; of a scheduling gate, too, only the position is read."""
    spec = pod.get("spec") or {}
    gates = [one.get("name") for one in spec.get("schedulingGates") or ()]
    answer = msgspec.structs.replace(_refused({**pod, "spec": {}}, TOO_LARGE), decision="large")
    if (ours := gates.count(names.RESTORE_GATE)) == 0:
        return answer
    # gate names are unique; otherwise the API server refuses the pod
    path = f"/spec/schedulingGates/{gates.index(names.RESTORE_GATE)}" if ours == 1 else "/spec/schedulingGates"
    return msgspec.structs.replace(answer, patch=(*answer.patch, {"op": "remove", "path": path}))


def _refused(before: Object, why: str) -> Answer:
    """Mark the pod as unprotected, with the reason."""
    unmarked = _unmarked(before, Answer("unclear", warnings=(f"cedana: not protected: {why}",)))
    pod = injection.opened(before)
    injection.unmark(pod)
    injection.refusal(pod, why)
    return Answer("unclear", patch=tuple(difference(before, pod)), warnings=unmarked.warnings)


def _unmarked(before: Object, answer: Answer) -> Answer:
    """Remove marks reserved for us: no component would lift that gate, nor identify the pod."""
    if not _is_marked(before):
        return answer
    pod = injection.opened(before)
    injection.unmark(pod)
    warning = "cedana: our label and our scheduling gate are taken away: the pod does not say clearly who it is"
    return Answer("unmarked", patch=tuple(difference(before, pod)), warnings=(*answer.warnings, warning))


def _is_marked(pod: Object) -> bool:
    labels = (pod.get("metadata") or {}).get("labels") or {}
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return labels.get(names.PROTECTED) == "true" or any(gate.get("name") == names.RESTORE_GATE for gate in gates)


def _concerns_us(pod: Object, namespace: str, configuration: Configuration) -> bool:
    if not configuration.served.includes(namespace):
        return False
    return MIRROR not in ((pod.get("metadata") or {}).get("annotations") or {})


def _is_protected(pod: Object) -> bool:
    with suppress(UsageError):  # the answer reports what is ambiguous
        return replica_of(pod) is not None
    return False


def _prepare(
    before: Object,
    namespace: str,
    replica: Replica,
    knowledge: Knowledge,
    configuration: Configuration,
    *,
    alone: bool,
) -> Answer:
    annotations = before["metadata"].get("annotations") or {}
    continuation, unclear = _continuation(annotations, namespace, replica, knowledge, alone=alone)
    choice = (choose if continuation is None else choose_at_return)(annotations, namespace, knowledge)
    pod = injection.opened(before)
    injection.identity(pod, replica, _namespace_uid(namespace, knowledge, configuration))
    injection.policy(pod, choice.name)
    if not _forbids_host(namespace, knowledge):
        injection.hold(pod, choice.policy, configuration.agent_port)
        injection.asking(pod, configuration.asking)
    decision = "identified"
    warnings: tuple[str, ...] = ()
    if runtime_class := _foreign_runtime_class(pod["spec"]):
        warnings = (_cannot_continue(runtime_class),)
        remove_ours(pod)
    elif continuation is not None:
        injection.restore(pod, continuation, configuration, may_have_rules=knowledge.has_restart_rules)
        warnings = _keep_to_able_nodes(pod, continuation, knowledge)
        decision = "gated" if continuation.generation is None else "restores"
    elif names.RESTORE_IDENTITY in annotations:  # from a first call, which classified the pod as indistinguishable
        put_ours(pod, configuration.restore, may_have_rules=knowledge.has_restart_rules)
    else:
        remove_ours(pod)
    patch = tuple(difference(before, pod))
    return Answer(decision if patch else "unchanged", patch=patch, warnings=(*choice.warnings, *unclear, *warnings))


def _continuation(
    annotations: dict[str, str], namespace: str, replica: Replica, knowledge: Knowledge, *, alone: bool
) -> tuple[Continuation | None, tuple[str, ...]]:
    """Return the continuation: a snapshot chosen by the user takes precedence; warn if the choice is malformed.

    A pod with a malformed choice is still a restore: the coordinator finds no snapshot, and the policy decides.
    """
    try:
        wanted = asked_for(namespace, annotations)
    except UsageError as error:
        return Continuation(replica, None), (f"cedana: {error}",)
    if wanted is not None:
        return continuation_from(wanted, knowledge), ()
    return _newest(annotations, namespace, replica, knowledge, alone=alone), ()


def _newest(
    annotations: dict[str, str], namespace: str, replica: Replica, knowledge: Knowledge, *, alone: bool
) -> Continuation | None:
    if not alone:
        return continuation_among(namespace, replica, knowledge)
    known = continuation_of(namespace, replica, knowledge)
    if known is None and annotations.get(names.EXPECT_SNAPSHOT) == "true":
        return Continuation(replica, None)  # the node finds the generation in the store
    return known


def _namespace_uid(namespace: str, knowledge: Knowledge, configuration: Configuration) -> str:
    """Return the namespace's uid; empty for shared names, and if the namespace is not cached yet."""
    known = knowledge.namespaces.get(namespace)
    return "" if known is None or is_shared(namespace, configuration.shared_namespaces) else known.metadata.uid


def _forbids_host(namespace: str, knowledge: Knowledge) -> bool:
    known = knowledge.namespaces.get(namespace)
    return known is not None and known.metadata.labels.get(ENFORCED) in FORBIDS_HOST


def _foreign_runtime_class(spec: dict[str, Any]) -> str | None:
    runtime_class = spec.get("runtimeClassName")
    return runtime_class if runtime_class and runtime_class != names.RUNTIME_CLASS else None


def _refuse_own_users(pod: Object) -> None:
    """Refuse user namespaces: the kubelet maps them to unique ids of the node, and a restore compares both.

    Raises:
        UsageError: the pod has a user namespace.
    """
    if (pod.get("spec") or {}).get("hostUsers") is False:
        raise UsageError(
            "spec.hostUsers",
            False,  # noqa: FBT003 - the pod's value
            "gives each pod other users of the node, so that no snapshot continues in another pod",
            remedy="leave it out",
        )


def _cannot_continue(runtime_class: str) -> str:
    error = UsageError(
        "spec.runtimeClassName",
        runtime_class,
        "cannot continue a snapshot: the pod starts anew",
        remedy=f"leave it out, or name {names.RUNTIME_CLASS!r}",
    )
    return f"cedana: {error}"


def _keep_to_able_nodes(pod: Object, continuation: Continuation, knowledge: Knowledge) -> tuple[str, ...]:
    """Restrict the pod to CPUs that can restore the snapshot; if in flight, the coordinator does so at the gate."""
    if continuation.generation is None or continuation.source is None:
        return ()
    cpus = cpus_that_can_continue(continuation.source.spec.pod_ref.node_name, tuple(knowledge.nodes))
    if cpus:
        require_one_of(pod["spec"], names.CPU_FEATURES, cpus)
    elif cpus is not None:
        return (f"cedana: no node of this cluster has the CPU features that {continuation} needs",)
    return ()
