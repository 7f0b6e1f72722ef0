"""Names of ours in a pod that somebody else wrote: what is ours is made so again, and what cannot be is refused.

The agent neither dumps the restore container nor doubts it. So nobody else's program may run under its name, and
nobody else's container may reach its volume. A manifest of a running pod that is applied anew brings ours along.
Where no webhook answers, the chart's policy (`reserved-names.yaml`) refuses the same.
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
    """Refuse to protect a pod whose own containers have the names of ours.

    Raises:
        UsageError: which field.
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
    """Take the restore container and its volume out of a pod that does not continue: nobody would end its wait."""
    spec = pod["spec"]
    pod["metadata"]["annotations"].pop(names.RESTORE_IDENTITY, None)
    for kind, name in (("initContainers", names.RESTORE_CONTAINER), ("volumes", names.RESTORE_VOLUME)):
        if any(one.get("name") == name for one in spec.get(kind) or ()):
            spec[kind] = [one for one in spec[kind] if one.get("name") != name]


def put_ours(pod: Object, wanted: RestoreContainer, *, may_have_rules: bool = False) -> None:
    """Have the restore container and its volume in the pod, as ours are; what others may add to ours stays.

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
    """Where it is right already, nothing moves: a webhook that is called again changes nothing."""
    return before if made in before else [*others, made]
