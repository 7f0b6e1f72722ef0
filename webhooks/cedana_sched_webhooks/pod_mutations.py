"""Mutations of a pod. Each function changes the given pod in place, and is idempotent, but for the preStop token.

They change only what `copy_mutable_parts` has copied, and replace other values instead of changing them.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.kube.restore_node_affinity import require_label
from cedana_sched.model.objects import names
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched_webhooks.configuration import Configuration, DeletionConfirmation
from cedana_sched_webhooks.identity import Replica
from cedana_sched_webhooks.json_patch import escape_pointer_segment
from cedana_sched_webhooks.restore_container import put_restore_container
from cedana_sched_webhooks.snapshot_choice import Continuation

GRACE_MARGIN_SECONDS: Final = 30
"""For the steps after the longest hold: the end of the frozen container and of the pod."""

DEFAULT_GRACE_SECONDS: Final = 30
"""Kubernetes' default."""

LOCAL_VOLUMES: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""Annotation of a pod: names of its emptyDir volumes, separated by commas (Cluster Autoscaler, FAQ)."""

LONGEST_REASON: Final = 1_024
"""Characters, as for an Event; the reason may quote fields of the pod."""
WRITTEN_LATER: Final = (
    names.NOT_PROTECTED, names.EVICTION_REQUESTED, names.DISRUPTION_REQUESTED, names.RELEASED_HOLD,
    names.NOT_PREEMPTED, names.CONFIRM_DELETION, names.NAMESPACE_UID, names.MISSED_BY_WEBHOOK,
)  # fmt: skip
"""Annotations that our components write on a pod, and never on a pod template."""

_HOLD_PATH: Final = "/v1/hold/"
_TOKEN_POINTERS: Final = (
    f"/metadata/annotations/{escape_pointer_segment(names.PRESTOP_TOKEN)}",
    "/lifecycle/preStop/httpGet/path",
)
"""Ends of the JSON pointers to what has a token in it."""


def copy_mutable_parts(pod: Object) -> Object:
    """Copy the pod for the functions below, except the parts that they do not change, which may be large."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    containers = [dict(one) for one in spec.get("containers") or ()]
    return {**pod, "metadata": dict(metadata), "spec": {**spec, "containers": containers} if containers else dict(spec)}


def write_identity(pod: Object, replica: Replica, namespace_uid: str) -> None:
    """Write the pod's identity as label and annotations; `namespace_uid` is empty for shared names."""
    metadata = pod["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), names.PROTECTED: "true"}
    identity = {names.ID: replica.id, names.INDEX: str(replica.index)}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **identity}
    _remove_later_annotations(metadata["annotations"])
    if namespace_uid:
        metadata["annotations"][names.NAMESPACE_UID] = namespace_uid


def write_policy(pod: Object, name: str | None) -> None:
    """Write the pod's policy; None if neither the queue nor the pod names one."""
    if name is not None:
        pod["metadata"]["annotations"][names.POLICY] = name


def mark_unprotected(pod: Object, why: str) -> None:
    """Mark the pod as unprotected, with the reason; the coordinator publishes an Event for pods with this label."""
    metadata = pod["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), names.PROTECTED: "false"}
    metadata["annotations"] = dict(metadata.get("annotations") or {})
    _remove_later_annotations(metadata["annotations"])
    metadata["annotations"][names.NOT_PROTECTED] = why[:LONGEST_REASON]


def _remove_later_annotations(annotations: dict[str, str]) -> None:
    """Remove annotations that no component of ours can have written, because the pod is only being created.

    A token is issued for each pod: one that is there has been copied from another pod, or is from our first call.
    """
    for key in (*WRITTEN_LATER, names.PRESTOP_TOKEN):
        annotations.pop(key, None)


def remove_reserved_marks(pod: Object) -> None:
    """Remove marks that would make other components treat the pod as ours."""
    metadata, spec = pod["metadata"], pod["spec"]
    for texts, key in (("labels", names.PROTECTED), ("annotations", names.RESTORE_IDENTITY)):
        if metadata.get(texts):
            metadata[texts] = {name: value for name, value in metadata[texts].items() if name != key}
    if spec.get("schedulingGates"):
        spec["schedulingGates"] = [one for one in spec["schedulingGates"] if one.get("name") != names.RESTORE_GATE]


def write_confirm_deletion(pod: Object, confirmation: DeletionConfirmation) -> None:
    """Annotate whether the preStop hook waits for a confirmation of what the deletion is."""
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    if confirmation.labels & labels.keys():
        annotations[names.CONFIRM_DELETION] = names.CONFIRM_ALWAYS
    elif pod["spec"].get("schedulerName") in confirmation.schedulers:
        annotations[names.CONFIRM_DELETION] = names.CONFIRM_IF_EVICTED
    elif confirmation.other_pods:
        annotations[names.CONFIRM_DELETION] = names.CONFIRM_ALWAYS


def add_prestop_hook(pod: Object, policy: CheckpointPolicy, agent_port: int) -> None:
    """Make the kubelet call the node's `prestop-proxy` pod before it ends a container without a preStop hook.

    Each call issues another token, and replaces the hooks of a token that the pod has: the agent finds the pod of a
    preStop call by its token, so that a copied one would be answered for another pod.
    """
    annotations = pod["metadata"]["annotations"]
    token = secrets.token_urlsafe(24)
    call = {"host": "127.0.0.1", "port": agent_port, "scheme": "HTTP"}
    held = False
    for container in pod["spec"]["containers"]:
        lifecycle = container.get("lifecycle") or {}
        if not lifecycle.get("preStop") or _is_our_hook(lifecycle["preStop"]):
            path = f"{_HOLD_PATH}{token}/{container['name']}"  # the kubelet may end one container and keep the others
            container["lifecycle"] = {**lifecycle, "preStop": {"httpGet": {**call, "path": path}}}
            held = True
    if held:  # without the hook no call comes, and the agent must not wait for one
        annotations[names.PRESTOP_TOKEN] = token
        _raise_grace(pod, math.ceil(policy.deadline_seconds) + GRACE_MARGIN_SECONDS)


def is_renewal_of_token(patch: Iterable[Object]) -> bool:
    """Return whether a patch replaces the pod's preStop token, and changes nothing else."""
    return all(one["op"] == "replace" and one["path"].endswith(_TOKEN_POINTERS) for one in patch)


def _is_our_hook(pre_stop: dict[str, Any]) -> bool:
    """Return whether the hook calls the node's `prestop-proxy` pod, in any notation of its address."""
    call = pre_stop.get("httpGet") or {}
    is_of_hold = f"/{str(call.get('path') or '').lstrip('/')}".startswith(_HOLD_PATH)
    return is_of_hold and _is_loopback(str(call.get("host") or ""))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _raise_grace(pod: Object, seconds: int) -> None:
    """Raise the grace period; the annotation keeps the user's value, which the agent applies. Idempotent."""
    spec, annotations = pod["spec"], pod["metadata"]["annotations"]
    own = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    if (own or 0) < seconds:
        annotations[names.ORIGINAL_GRACE_PERIOD] = str(own or 0)
        spec["terminationGracePeriodSeconds"] = seconds


def prepare_restore(
    pod: Object, continuation: Continuation, configuration: Configuration, *, may_have_rules: bool = False
) -> None:
    """Make the pod wait on its node until the snapshot is staged, and use our runtime handler for its restore.

    `may_have_rules`: see `restore_container.build_restore_container`.
    """
    spec = pod["spec"]
    pod["metadata"]["annotations"][names.RESTORE_IDENTITY] = str(continuation)
    spec["runtimeClassName"] = names.RUNTIME_CLASS
    require_label(spec, names.NODE_PREPARED, "true")
    put_restore_container(pod, configuration.restore, may_have_rules=may_have_rules)
    _allow_scale_down(pod["metadata"])
    gates = spec.get("schedulingGates") or []
    waits = continuation.generation is None and not spec.get("nodeName")  # a pod with a node can no longer be gated
    if waits and not _has_named_object(gates, names.RESTORE_GATE):
        spec["schedulingGates"] = [*gates, {"name": names.RESTORE_GATE}]


def _allow_scale_down(metadata: dict[str, Any]) -> None:
    """Add our volume to those that do not keep the Cluster Autoscaler from evicting the pod: it has no data."""
    annotations = metadata["annotations"]
    volumes = [one for one in annotations.get(LOCAL_VOLUMES, "").split(",") if one]
    if names.RESTORE_VOLUME not in volumes:
        annotations[LOCAL_VOLUMES] = ",".join([*volumes, names.RESTORE_VOLUME])


def _has_named_object(objects: list[dict[str, Any]], name: str) -> bool:
    return any(one.get("name") == name for one in objects)
