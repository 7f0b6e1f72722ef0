"""The init container that waits until a snapshot is staged, and the volume by which the node's agent speaks to it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched_webhooks.configuration import RestoreContainer

MOUNT_PATH: Final = "/run/cedana-restore"
VOLUME_SIZE: Final = "1Mi"
LEAST_MEMORY: Final = "64Mi"

_ADDED_UP = ("cpu", "memory", "ephemeral-storage")
_QUANTITY = re.compile(r"([0-9.]+)(?:e([0-9]+)|([KMGTPE]i|[mkMGTPE])?)", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


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
        if "memory" in taken and _bytes(str(taken["memory"])) < _bytes(LEAST_MEMORY):
            taken["memory"] = LEAST_MEMORY
        if taken:
            found[kind] = taken
    return found


def _bytes(quantity: str) -> Decimal:
    """A Kubernetes quantity as a number; 0 where it is none, which the API server will refuse."""
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        return Decimal(0)
    number, exponent, suffix = Decimal(match[1]), match[2], match[3] or ""
    if exponent is not None:
        return number.scaleb(int(exponent))
    if suffix == "m":
        return number / 1000
    base = 1024 if suffix.endswith("i") else 1000
    return number * Decimal(base) ** _POWERS[suffix[:1].upper()]
