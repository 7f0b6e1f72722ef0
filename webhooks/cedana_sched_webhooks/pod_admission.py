"""Mutation of a pod at CREATE. A pod is never refused: an ambiguous one gets a warning, and starts.

A first start gets its identity, and the preStop hook by which it can be held; a pod with a snapshot also gets what a
restore needs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec

from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.client import Object
from cedana_sched.kube.restore_node_affinity import cpus_that_can_continue, require_node_label
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import CHECKPOINT_VARIABLE, is_keyed_by_name
from cedana_sched.model.objects import names
from cedana_sched_webhooks import pod_defaults, pod_mutations
from cedana_sched_webhooks.admission import LARGEST_BYTES, Answer, Request
from cedana_sched_webhooks.admission_types import MIRROR
from cedana_sched_webhooks.caches import AdmissionCaches
from cedana_sched_webhooks.configuration import Configuration
from cedana_sched_webhooks.identity import Replica, keep_read_variables, replica_of
from cedana_sched_webhooks.json_patch import patch_operations
from cedana_sched_webhooks.policy_choice import Choice, choose_policy, choose_policy_for_restore
from cedana_sched_webhooks.replica_numbers import Distinction, ReplicaNumbers
from cedana_sched_webhooks.restore_container import put_restore_container, refuse_foreign_use, remove_restore_container
from cedana_sched_webhooks.snapshot_choice import (
    Continuation,
    continuation_for_any_replica,
    continuation_from_snapshot,
    expect_snapshot_error,
    newest_continuation_of,
    requested_snapshot_of,
)

ENFORCED: Final = register_cached_key("pod-security.kubernetes.io/enforce")
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

    def __init__(self, caches: AdmissionCaches, configuration: Configuration, siblings: ReplicaNumbers) -> None:
        self._caches = caches
        self._configuration = configuration
        self._siblings = siblings

    async def answer(self, request: Request) -> Answer:
        """Return the mutation of the pod."""
        pod, namespace = request.object, request.namespace
        is_ours = pod is not None and _concerns_us(pod, namespace, self._configuration)
        if pod is None or not is_ours or _is_large(request, pod) or not _is_protected(pod):
            return admit_pod(request, self._caches, self._configuration)
        # kept encoded during the API call: decoded it is many times larger, and many requests may wait
        parked = msgspec.json.encode(msgspec.structs.replace(request, object=keep_read_variables(pod)))
        pending = self._siblings.distinguish(pod, namespace)
        del pod, request
        apart = await pending
        return admit_pod(msgspec.json.decode(parked, type=Request), self._caches, self._configuration, apart)


def admit_pod(
    request: Request, caches: AdmissionCaches, configuration: Configuration, apart: Distinction | None = None
) -> Answer:
    """Return the mutation of the pod; `apart` distinguishes it from others if its labels do not."""
    pod = request.object
    if pod is None or not _concerns_us(pod, request.namespace, configuration):
        return Answer("not-ours")
    if _is_large(request, pod):
        return _answer_too_large(pod)
    try:
        distinction = apart or Distinction()
        replica = replica_of(pod, distinction.by_chance, distinction.job)
        if replica is None:
            return _answer_without_marks(pod, Answer("not-ours"))
        refuse_foreign_use(pod)
        _refuse_user_namespace(pod)
        return _protect_pod(pod, request.namespace, replica, caches, configuration, distinction)
    except UsageError as error:
        return _answer_unprotected(pod, str(error))


def _is_large(request: Request, pod: Object) -> bool:
    spec = pod.get("spec") or {}
    return request.is_large or any(len(spec.get(kind) or ()) > MOST_CONTAINERS for kind in _CONTAINERS)


def _answer_too_large(pod: Object) -> Answer:
    """Mark the pod as unprotected; of a scheduling gate, too, only the position is read."""
    spec = pod.get("spec") or {}
    gates = [one.get("name") for one in spec.get("schedulingGates") or ()]
    answer = msgspec.structs.replace(_answer_unprotected({**pod, "spec": {}}, TOO_LARGE), decision="large")
    if (ours := gates.count(names.RESTORE_GATE)) == 0:
        return answer
    # gate names are unique; otherwise the API server refuses the pod
    path = f"/spec/schedulingGates/{gates.index(names.RESTORE_GATE)}" if ours == 1 else "/spec/schedulingGates"
    return msgspec.structs.replace(answer, patch=(*answer.patch, {"op": "remove", "path": path}))


def _answer_unprotected(before: Object, why: str) -> Answer:
    """Mark the pod as unprotected, with the reason."""
    unmarked = _answer_without_marks(before, Answer("unclear", warnings=(f"cedana: not protected: {why}",)))
    pod = pod_mutations.copy_mutable_parts(before)
    pod_mutations.remove_reserved_marks(pod)
    pod_mutations.mark_unprotected(pod, why)
    return Answer("unclear", patch=tuple(patch_operations(before, pod)), warnings=unmarked.warnings)


def _answer_without_marks(before: Object, answer: Answer) -> Answer:
    """Remove marks reserved for us: no component would lift that gate, nor identify the pod."""
    if not _has_reserved_marks(before):
        return answer
    pod = pod_mutations.copy_mutable_parts(before)
    pod_mutations.remove_reserved_marks(pod)
    warning = (
        f"cedana: the label {names.PROTECTED} and the scheduling gate {names.RESTORE_GATE} are removed: the pod has no "
        f"valid id (give it one by {CHECKPOINT_VARIABLE}, or by the annotation {names.ID})"
    )
    return Answer("unmarked", patch=tuple(patch_operations(before, pod)), warnings=(*answer.warnings, warning))


def _has_reserved_marks(pod: Object) -> bool:
    labels = (pod.get("metadata") or {}).get("labels") or {}
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return labels.get(names.PROTECTED) == "true" or any(gate.get("name") == names.RESTORE_GATE for gate in gates)


def _concerns_us(pod: Object, namespace: str, configuration: Configuration) -> bool:
    if not configuration.served_namespaces.includes(namespace):
        return False
    return MIRROR not in ((pod.get("metadata") or {}).get("annotations") or {})


def _is_protected(pod: Object) -> bool:
    with suppress(UsageError):  # the answer reports what is ambiguous
        return replica_of(pod) is not None
    return False


def _protect_pod(
    before: Object,
    namespace: str,
    replica: Replica,
    caches: AdmissionCaches,
    configuration: Configuration,
    apart: Distinction,
) -> Answer:
    annotations = before["metadata"].get("annotations") or {}
    continuation, unclear = _choose_continuation(annotations, namespace, replica, caches, apart)
    choice = (choose_policy if continuation is None else choose_policy_for_restore)(annotations, namespace, caches)
    pod = pod_mutations.copy_mutable_parts(before)
    pod_mutations.write_identity(pod, replica, _namespace_uid(namespace, caches, configuration))
    pod_mutations.write_policy(pod, choice.name)
    if not _is_host_access_forbidden(namespace, caches):
        pod_mutations.add_prestop_hook(pod, choice.policy, configuration.agent_port)
        pod_mutations.write_confirm_deletion(pod, configuration.deletion_confirmation)
    unset = _write_pod_defaults(pod, namespace, choice, continuation, caches)
    decision = "identified"
    warnings: tuple[str, ...] = ()
    if runtime_class := _foreign_runtime_class(pod["spec"]):
        warnings = (_runtime_class_warning(runtime_class),)
        remove_restore_container(pod)
    elif continuation is not None:
        pod_mutations.prepare_restore(pod, continuation, configuration, may_have_rules=caches.has_restart_rules)
        warnings = _keep_to_able_nodes(pod, continuation, caches)
        decision = "gated" if continuation.generation is None else "restores"
    elif names.RESTORE_IDENTITY in annotations:  # from a first call, which classified the pod as indistinguishable
        put_restore_container(pod, configuration.restore, may_have_rules=caches.has_restart_rules)
    else:
        remove_restore_container(pod)
    patch = tuple(patch_operations(before, pod))
    is_called_again = pod_mutations.is_renewal_of_token(patch)
    return Answer(
        "unchanged" if is_called_again else decision,
        patch=patch,
        warnings=(*choice.warnings, *unclear, *unset, *warnings, *_unread_expectation(annotations)),
    )


def _write_pod_defaults(
    pod: Object, namespace: str, choice: Choice, continuation: Continuation | None, caches: AdmissionCaches
) -> tuple[str, ...]:
    """Write what the policy sets where the pod sets nothing; return what the pod's author should know of it."""
    if choice.pod_defaults.disable_libuv_io_uring:
        pod_defaults.disable_libuv_io_uring(pod)
    pod_defaults.remove_stray_mark(pod)
    if (profile := choice.pod_defaults.seccomp_profile) is None:
        return ()
    if pod_defaults.may_have_profile(profile, namespace, continuation, caches):
        pod_defaults.write_seccomp_profile(pod, profile)
        return ()
    return (f"cedana: the pod does not get the seccomp profile {profile}: the pod of its snapshot had not got it",)


def _choose_continuation(
    annotations: dict[str, str], namespace: str, replica: Replica, caches: AdmissionCaches, apart: Distinction
) -> tuple[Continuation | None, tuple[str, ...]]:
    """Return the continuation: a snapshot chosen by the user takes precedence; warn if the choice is malformed.

    A pod with a malformed choice is still a restore: the coordinator finds no snapshot, and the policy decides.
    """
    try:
        wanted = requested_snapshot_of(namespace, annotations)
    except UsageError as error:
        return Continuation(replica, None), (f"cedana: {error}",)
    if wanted is not None:
        return continuation_from_snapshot(wanted, caches), ()
    alone = apart.by_chance is None
    if apart.replaces:  # the coordinator decides, once it is known whether that pod is saved
        of_any = names.any_snapshot_restore_identity(replica.id)  # a first call may have written it
        return Continuation(replica, None, any_of_id=not alone or annotations.get(names.RESTORE_IDENTITY) == of_any), ()
    return _newest_continuation(annotations, namespace, replica, caches, alone=alone), ()


def _newest_continuation(
    annotations: dict[str, str], namespace: str, replica: Replica, caches: AdmissionCaches, *, alone: bool
) -> Continuation | None:
    if not alone:
        return continuation_for_any_replica(namespace, replica, caches)
    known = newest_continuation_of(namespace, replica, caches)
    if known is None and annotations.get(names.EXPECT_SNAPSHOT) == "true":
        return Continuation(replica, None)  # the node finds the generation in the store
    return known


def _unread_expectation(annotations: dict[str, str]) -> tuple[str, ...]:
    error = expect_snapshot_error(annotations)
    return () if error is None else (f"cedana: {error}",)


def _namespace_uid(namespace: str, caches: AdmissionCaches, configuration: Configuration) -> str:
    """Return the namespace's uid; empty for shared names, and if the namespace is not cached yet."""
    known = caches.namespaces.get(namespace)
    return "" if known is None or is_keyed_by_name(namespace, configuration.shared_namespaces) else known.metadata.uid


def _is_host_access_forbidden(namespace: str, caches: AdmissionCaches) -> bool:
    known = caches.namespaces.get(namespace)
    return known is not None and known.metadata.labels.get(ENFORCED) in FORBIDS_HOST


def _foreign_runtime_class(spec: dict[str, Any]) -> str | None:
    runtime_class = spec.get("runtimeClassName")
    return runtime_class if runtime_class and runtime_class != names.RUNTIME_CLASS else None


def _refuse_user_namespace(pod: Object) -> None:
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


def _runtime_class_warning(runtime_class: str) -> str:
    error = UsageError(
        "spec.runtimeClassName",
        runtime_class,
        "cannot continue a snapshot: the pod starts anew",
        remedy=f"leave it out, or name {names.RUNTIME_CLASS!r}",
    )
    return f"cedana: {error}"


def _keep_to_able_nodes(pod: Object, continuation: Continuation, caches: AdmissionCaches) -> tuple[str, ...]:
    """Restrict the pod to CPUs that can restore the snapshot; if in flight, the coordinator does so at the gate."""
    if continuation.generation is None or continuation.source is None:
        return ()
    cpus = cpus_that_can_continue(continuation.source.spec.pod_ref.node_name, tuple(caches.nodes))
    if cpus:
        require_node_label(pod["spec"], names.CPU_FEATURES, cpus)
    elif cpus is not None:
        problem = f"no node of this cluster has the CPU features that {continuation} needs"
        return (f"cedana: {problem} (add such a node; to begin anew, give the pod another id)",)
    return ()
