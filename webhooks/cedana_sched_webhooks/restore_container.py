"""The init container that waits until a snapshot is staged, and the volume by which the node's agent speaks to it."""

from __future__ import annotations

from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.kube.quantities import amount
from cedana_sched.model.objects import names
from cedana_sched_webhooks.configuration import RestoreContainer

MOUNT_PATH: Final = "/run/cedana-restore"
VOLUME_SIZE: Final = "1Mi"
LEAST_MEMORY: Final = "64Mi"

_ADDED_UP = ("cpu", "memory", "ephemeral-storage")


def container(wanted: RestoreContainer, application: dict[str, Any]) -> dict[str, Any]:
    """It satisfies Pod Security `restricted`, and asks for what the pod's first container asks for.

    So the pod counts for as much as before (an init container counts only where it asks for more than the others
    together), keeps its class of service, and satisfies the same quotas.
    """
    made: dict[str, Any] = {
        "name": names.RESTORE_CONTAINER,
        "image": wanted.image,
        "imagePullPolicy": wanted.image_pull_policy,
        "command": list(wanted.command),
        "resources": _resources(application),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": wanted.user,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": names.RESTORE_VOLUME, "mountPath": MOUNT_PATH}],
    }
    return made


def volume() -> Object:
    return {"name": names.RESTORE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": VOLUME_SIZE}}


def _resources(application: dict[str, Any]) -> dict[str, dict[str, Any]]:
    asked = application.get("resources") or {}
    found: dict[str, dict[str, Any]] = {}
    for kind in ("limits", "requests"):
        taken = {name: value for name, value in (asked.get(kind) or {}).items() if name in _ADDED_UP}
        if "memory" in taken and amount(str(taken["memory"])) < amount(LEAST_MEMORY):
            taken["memory"] = LEAST_MEMORY
        if taken:
            found[kind] = taken
    return found
