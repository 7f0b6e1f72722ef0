"""Reserved names in submitted pods: our own parts are overwritten, other uses are refused.

The agent neither dumps nor verifies the restore container. So no other program may run under its name, and no other
container may mount its volume. A manifest of a running pod that is applied again contains our parts.
While no webhook answers, the chart's policy (`reserved-names.yaml`) refuses the same uses.
"""

from __future__ import annotations

from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched_webhooks import restore_container
from cedana_sched_webhooks.configuration import RestoreContainer

_REMEDY: Final = "give it another name: this one is the restore container's"


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


def remove_ours(pod: Object) -> None:
    """Remove the restore container and its volume from a pod without a restore: no component would end its wait."""
    spec = pod["spec"]
    pod["metadata"]["annotations"].pop(names.RESTORE_IDENTITY, None)
    for kind, name in (("initContainers", names.RESTORE_CONTAINER), ("volumes", names.RESTORE_VOLUME)):
        if any(one.get("name") == name for one in spec.get(kind) or ()):
            spec[kind] = [one for one in spec[kind] if one.get("name") != name]


def put_ours(pod: Object, wanted: RestoreContainer, *, may_have_rules: bool = False) -> None:
    """Set the restore container and its volume in the pod; permitted additions of others stay.

    `may_have_rules`: see `restore_container.container`.
    """
    spec = pod["spec"]
    initial: list[dict[str, Any]] = spec.get("initContainers") or []
    made = restore_container.container(wanted, spec, may_have_rules=may_have_rules)
    if any(one.get("name") == names.RESTORE_CONTAINER for one in initial):
        spec["initContainers"] = [
            restore_container.made_ours(one, made) if one.get("name") == names.RESTORE_CONTAINER else one
            for one in initial
        ]
    else:
        spec["initContainers"] = [made, *initial]
    others = [one for one in spec.get("volumes") or [] if one.get("name") != names.RESTORE_VOLUME]
    spec["volumes"] = _in_place(spec.get("volumes") or [], restore_container.volume(), others)


def _in_place(before: list[Object], made: Object, others: list[Object]) -> list[Object]:
    """Keep the order if the volume is already correct, so that a repeated webhook call changes nothing."""
    return before if made in before else [*others, made]
