"""What a policy's `podDefaults` write into new pods where the pods leave it unset.

The same rules as for `pod_mutations`: each function changes the given pod in place, and is idempotent.
"""

from __future__ import annotations

from typing import Any

from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint_policy import SeccompProfile
from cedana_sched_webhooks.caches import AdmissionCaches
from cedana_sched_webhooks.identity import IO_URING_VARIABLE
from cedana_sched_webhooks.snapshot_choice import Continuation


def disable_libuv_io_uring(pod: Object) -> None:
    """Set the variable in the containers that CRIU saves, unless they set it themselves."""
    spec = pod["spec"]
    for kind in ("containers", "initContainers"):
        if found := spec.get(kind):
            spec[kind] = [_with_variable(one) if kind == "containers" or _is_sidecar(one) else one for one in found]


def _is_sidecar(container: dict[str, Any]) -> bool:
    return container.get("restartPolicy") == "Always" and container.get("name") != names.RESTORE_CONTAINER


def _with_variable(container: dict[str, Any]) -> dict[str, Any]:
    variables = container.get("env") or []
    if any(one.get("name") == IO_URING_VARIABLE for one in variables):
        return container
    return {**container, "env": [*variables, {"name": IO_URING_VARIABLE, "value": "0"}]}


def write_seccomp_profile(pod: Object, profile: SeccompProfile) -> None:
    """Give the pod the profile unless it names one, and mark that; its containers may name others."""
    spec, annotations = pod["spec"], pod["metadata"]["annotations"]
    security = spec.get("securityContext") or {}
    if security.get("seccompProfile") or (spec.get("os") or {}).get("name") == "windows":
        return
    written = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    spec["securityContext"] = {**security, "seccompProfile": written}
    annotations[names.SECCOMP_DEFAULTED] = str(profile)


def remove_stray_mark(pod: Object) -> None:
    """Remove the mark from a pod without a profile: the manifest of another pod may contain it."""
    if not (pod["spec"].get("securityContext") or {}).get("seccompProfile"):
        pod["metadata"]["annotations"].pop(names.SECCOMP_DEFAULTED, None)


def may_have_profile(
    profile: SeccompProfile, namespace: str, continuation: Continuation | None, caches: AdmissionCaches
) -> bool:
    """Return whether the snapshot that the pod restores, if any, was taken of a pod that had got the same profile.

    A snapshot without it is not restored in a pod with it: its processes would have more rights than their container.
    """
    if continuation is None:
        return True
    if continuation.any_of_id:
        known = caches.checkpoints_of_id(namespace, continuation.replica.id)
        saved = [one for one in known if one.in_flight or one.restorable_generation is not None]
    else:
        saved = [continuation.source] if continuation.source is not None else []
    marks = {one.metadata.annotations.get(names.SECCOMP_DEFAULTED) for one in saved}
    return marks == {str(profile)}
