"""The init container that waits until a snapshot is staged, and the volume through which the agent reaches it.

Their names are reserved: our own parts in a submitted pod are overwritten, other uses are refused. The agent neither
dumps nor verifies the restore container. So no other program may run under its name, and no other container may mount
its volume. A manifest of a running pod that is applied again contains our parts. While no webhook answers, the chart's
policy (`reserved-names.yaml`) refuses the same uses.
"""

from __future__ import annotations

import re
from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.kube.quantities import parse_quantity
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched_webhooks.configuration import RestoreContainer

MOUNT_PATH: Final = "/run/cedana-restore"
VOLUME_SIZE: Final = "1Mi"
LEAST_MEMORY: Final = "64Mi"
START_FAILED: Final = 128
"""Exit code that containerd reports for a container that it could not start, or whose start was abandoned
(`StartError`); our program has no such exit code."""

_REMEDY: Final = "give it another name: this one is the restore container's"
_KEPT = frozenset({"resources", "terminationMessagePath"})
_LOADS = re.compile(r"LD_|PYTHON|GLIBC_TUNABLES$|GCONV_PATH$|BROWSER$|PATH$")
"""Variables that make the dynamic loader or Python load other code, or start another program."""

_LED_ASTRAY = re.compile(r"(^|/)[.]{1,2}(/|$)|//")
_OF_THE_IMAGE = re.compile(
    r"^/?($|(usr|bin|sbin|lib[0-9a-z]*|opt|etc|proc|sys|dev)(/|$)|(var/)?run/?$|(var/)?run/cedana-restore(/|$))"
)
_CERTIFICATES = re.compile(r"^/etc/(ssl|pki)(/|$)")
"""Mount paths that would hide our program or what it loads; except CA certificates, which it does not read. The chart's
policy has the same three patterns."""

_ADDED_UP = ("cpu", "memory", "ephemeral-storage")


def refuse_foreign_use(pod: Object) -> None:
    """Refuse to protect a pod whose own containers use reserved names.

    Raises:
        UsageError: names the field.
    """
    spec = pod["spec"]
    for kind in ("containers", "ephemeralContainers"):
        for number, one in enumerate(spec.get(kind) or ()):
            if one.get("name") == names.RESTORE_CONTAINER:
                raise UsageError(f"spec.{kind}[{number}].name", names.RESTORE_CONTAINER, "is reserved", remedy=_REMEDY)
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for number, one in enumerate(spec.get(kind) or ()):
            mounted = (mount.get("name") for mount in one.get("volumeMounts") or ())
            if one.get("name") != names.RESTORE_CONTAINER and names.RESTORE_VOLUME in mounted:
                field = f"spec.{kind}[{number}].volumeMounts"
                raise UsageError(field, names.RESTORE_VOLUME, "is reserved", remedy=_REMEDY)


def remove_restore_container(pod: Object) -> None:
    """Remove the restore container and its volume from a pod without a restore: no component would end its wait."""
    spec = pod["spec"]
    pod["metadata"]["annotations"].pop(names.RESTORE_IDENTITY, None)
    for kind, name in (("initContainers", names.RESTORE_CONTAINER), ("volumes", names.RESTORE_VOLUME)):
        if any(one.get("name") == name for one in spec.get(kind) or ()):
            spec[kind] = [one for one in spec[kind] if one.get("name") != name]


def put_restore_container(pod: Object, wanted: RestoreContainer, *, may_have_rules: bool = False) -> None:
    """Set the restore container and its volume in the pod; permitted additions of others stay.

    `may_have_rules`: see `build_restore_container`.
    """
    spec = pod["spec"]
    initial: list[dict[str, Any]] = spec.get("initContainers") or []
    made = build_restore_container(wanted, spec, may_have_rules=may_have_rules)
    if any(one.get("name") == names.RESTORE_CONTAINER for one in initial):
        spec["initContainers"] = [
            _rebuild_submitted_container(one, made) if one.get("name") == names.RESTORE_CONTAINER else one
            for one in initial
        ]
    else:
        spec["initContainers"] = [made, *initial]
    volume = {"name": names.RESTORE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": VOLUME_SIZE}}
    volumes = spec.get("volumes") or []
    if volume not in volumes:  # if it is there, the order stays, so that a repeated webhook call changes nothing
        spec["volumes"] = [*(one for one in volumes if one.get("name") != names.RESTORE_VOLUME), volume]


def build_restore_container(
    wanted: RestoreContainer, spec: dict[str, Any], *, may_have_rules: bool = False
) -> dict[str, Any]:
    """Build the container for a pod of this `spec`: Pod Security `restricted`, resources of the pod's first container.

    So the pod's effective request stays the same (an init container counts only if it requests more than the others
    together), as do its QoS class and its quota use. A failed start is restarted, even with `restartPolicy: Never`,
    because nothing has run by then; a failure of the program itself fails such a pod, as a policy may require.

    Args:
        wanted: the installation's configuration.
        spec: of the pod.
        may_have_rules: the cluster supports restart rules of containers (see `restart_rules_detection`).
    """
    made: dict[str, Any] = {
        "name": names.RESTORE_CONTAINER,
        "image": wanted.image,
        "imagePullPolicy": wanted.image_pull_policy,
        "command": [names.RESTORE_COMMAND],
        "resources": _restore_container_resources(spec["containers"][0]),
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
    if may_have_rules and spec.get("restartPolicy") == "Never":
        made["restartPolicy"] = "Never"  # rules require a container restartPolicy
        exit_codes = {"operator": "In", "values": [START_FAILED]}
        made["restartPolicyRules"] = [{"action": "Restart", "exitCodes": exit_codes}]
    return made


def _restore_container_resources(application: dict[str, Any]) -> dict[str, dict[str, Any]]:
    resources = application.get("resources") or {}
    found: dict[str, dict[str, Any]] = {}
    for kind in ("limits", "requests"):
        taken = {name: value for name, value in (resources.get(kind) or {}).items() if name in _ADDED_UP}
        if "memory" in taken and parse_quantity(str(taken["memory"])) < parse_quantity(LEAST_MEMORY):
            taken["memory"] = LEAST_MEMORY
        if taken:
            found[kind] = taken
    return found


def _rebuild_submitted_container(found: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Rebuild a submitted container of that name around our program, without anything that could alter it.

    Resources, variables and read-only mounts stay: other webhooks, and the API server itself, add them to every
    container before our webhook is called again.
    """
    mounts = [*made["volumeMounts"], *(one for one in found.get("volumeMounts") or () if _is_harmless(one))]
    variables = [one for one in found.get("env") or () if not _LOADS.match(str(one.get("name", "")))]
    kept = {key: value for key, value in found.items() if key in _KEPT}
    return {**made, **kept, "volumeMounts": mounts, **({"env": variables} if variables else {})}


def _is_harmless(mount: dict[str, Any]) -> bool:
    path = str(mount.get("mountPath", ""))
    hides = bool(_OF_THE_IMAGE.search(path)) and not _CERTIFICATES.search(path)
    is_other = bool(mount.get("readOnly")) and mount.get("name") != names.RESTORE_VOLUME
    return is_other and not hides and not _LED_ASTRAY.search(path)
