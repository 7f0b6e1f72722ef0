"""What is written on a pod. Each function changes the pod that it is given, and changes nothing the second time.

Of that pod they change what `opened` has copied, and put new values in place of others.
"""

from __future__ import annotations

import math
import re
import secrets
from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.kube.placement import require_label
from cedana_sched.model.objects import names
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched_webhooks.configuration import Asking, Configuration
from cedana_sched_webhooks.continuation import Continuation
from cedana_sched_webhooks.identity import Replica
from cedana_sched_webhooks.reserved import put_ours

GRACE_MARGIN_SECONDS: Final = 30
"""For what follows the longest hold: the frozen container's end, and the pod's."""

DEFAULT_GRACE_SECONDS: Final = 30
"""Kubernetes' own."""

LONGEST_REASON: Final = 1_024
"""Characters: as many as an Event has; it may quote what stands in the pod."""
SAID_LATER: Final = (
    names.NOT_PROTECTED, names.EVICTION_REQUESTED, names.RELEASED_HOLD, names.NOT_PREEMPTED, names.CONFIRM_DELETION,
    names.NAMESPACE_UID, names.MISSED_BY_WEBHOOK,
)  # fmt: skip
"""Annotations that ours write on a pod, and never on the template of one."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,64}")


def opened(pod: Object) -> Object:
    """The same pod, for the functions below to change. What they leave alone is not copied, however much it is."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    containers = [dict(one) for one in spec.get("containers") or ()]
    return {**pod, "metadata": dict(metadata), "spec": {**spec, "containers": containers} if containers else dict(spec)}


def identity(pod: Object, replica: Replica, namespace_uid: str) -> None:
    """Say who it is, so that everybody else need not find out; `namespace_uid` is empty where it does not count."""
    metadata = pod["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), names.PROTECTED: "true"}
    told = {names.ID: replica.id, names.INDEX: str(replica.index)}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **told}
    _take_off(metadata["annotations"])
    if namespace_uid:
        metadata["annotations"][names.NAMESPACE_UID] = namespace_uid


def policy(pod: Object, name: str | None) -> None:
    """Say which policy it has, for good; None where nobody named one."""
    if name is not None:
        pod["metadata"]["annotations"][names.POLICY] = name


def refusal(pod: Object, why: str) -> None:
    """Say that it is not protected although somebody asked; the coordinator tells its owner of the label."""
    metadata = pod["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), names.PROTECTED: "false"}
    metadata["annotations"] = dict(metadata.get("annotations") or {})
    _take_off(metadata["annotations"])
    metadata["annotations"][names.NOT_PROTECTED] = why[:LONGEST_REASON]


def _take_off(annotations: dict[str, str]) -> None:
    """What nobody of ours has said of this pod, which is only now created."""
    for key in SAID_LATER:
        annotations.pop(key, None)


def unmark(pod: Object) -> None:
    """Take away what would have others take it for a pod of ours."""
    metadata, spec = pod["metadata"], pod["spec"]
    for texts, key in (("labels", names.PROTECTED), ("annotations", names.RESTORE_IDENTITY)):
        if metadata.get(texts):
            metadata[texts] = {name: value for name, value in metadata[texts].items() if name != key}
    if spec.get("schedulingGates"):
        spec["schedulingGates"] = [one for one in spec["schedulingGates"] if one.get("name") != names.RESTORE_GATE]


def asking(pod: Object, asking: Asking) -> None:
    """Say whether its preStop waits for word of what its deletion is."""
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    if asking.labels & labels.keys():
        annotations[names.CONFIRM_DELETION] = names.CONFIRM_ALWAYS
    elif pod["spec"].get("schedulerName") in asking.schedulers:
        annotations[names.CONFIRM_DELETION] = names.CONFIRM_IF_EVICTED


def hold(pod: Object, policy: CheckpointPolicy, agent_port: int) -> None:
    """Have the kubelet call the node's `holds` pod before it ends a container that has no preStop of its own."""
    annotations = pod["metadata"]["annotations"]
    token = annotations.get(names.PRESTOP_TOKEN, "")
    if not _TOKEN.fullmatch(token):
        token = secrets.token_urlsafe(24)
    ask = {"host": "127.0.0.1", "port": agent_port, "scheme": "HTTP"}
    held = False
    for container in pod["spec"]["containers"]:
        lifecycle = container.get("lifecycle") or {}
        if not lifecycle.get("preStop") or _is_ours(lifecycle["preStop"]):
            path = f"/v1/hold/{token}/{container['name']}"  # the kubelet may end one container and leave the others
            container["lifecycle"] = {**lifecycle, "preStop": {"httpGet": {**ask, "path": path}}}
            held = True
    if held:  # else no call comes, and the agent must not wait for one
        annotations[names.PRESTOP_TOKEN] = token
        _raise_grace(pod, math.ceil(policy.deadline_seconds) + GRACE_MARGIN_SECONDS)


def _is_ours(pre_stop: dict[str, Any]) -> bool:
    asked = pre_stop.get("httpGet") or {}
    return asked.get("host") == "127.0.0.1" and str(asked.get("path", "")).startswith("/v1/hold/")


def _raise_grace(pod: Object, seconds: int) -> None:
    """What its owner wanted is written down, and the agent keeps to it; who is called again finds it raised."""
    spec, annotations = pod["spec"], pod["metadata"]["annotations"]
    own = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    if (own or 0) < seconds:
        annotations[names.ORIGINAL_GRACE_PERIOD] = str(own or 0)
        spec["terminationGracePeriodSeconds"] = seconds


def restore(
    pod: Object, continuation: Continuation, configuration: Configuration, *, may_have_rules: bool = False
) -> None:
    """Have it wait on its node until the snapshot is staged, and be continued by our runtime handler.

    `may_have_rules`: see `restore_container.container`.
    """
    spec = pod["spec"]
    pod["metadata"]["annotations"][names.RESTORE_IDENTITY] = str(continuation)
    spec["runtimeClassName"] = names.RUNTIME_CLASS
    require_label(spec, names.NODE_PREPARED, "true")
    put_ours(pod, configuration.restore, may_have_rules=may_have_rules)
    gates = spec.get("schedulingGates") or []
    waits = continuation.generation is None and not spec.get("nodeName")  # who has a node cannot be gated any more
    if waits and not _named(gates, names.RESTORE_GATE):
        spec["schedulingGates"] = [*gates, {"name": names.RESTORE_GATE}]


def _named(objects: list[dict[str, Any]], name: str) -> bool:
    return any(one.get("name") == name for one in objects)
