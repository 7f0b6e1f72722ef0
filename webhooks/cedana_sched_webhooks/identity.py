"""Who a pod is: the id that opts it in, and its number among the replicas of that id."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import CHECKPOINT_VARIABLE, validate_name
from cedana_sched.model.objects import names

COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
TASK: Final = "volcano.sh/task-spec"
"""Volcano numbers the pods of each task of a job, from 0."""
TASK_INDEX: Final = "volcano.sh/task-index"


class Replica(msgspec.Struct, frozen=True):
    """One of the pods that share an id; `namespace / id / index` names its snapshots."""

    id: str
    index: int

    def __str__(self) -> str:
        return f"{self.id}/{self.index}"


def replica_of(pod: Object, by_chance: int | None = None) -> Replica | None:
    """Who this pod, or a pod of this template, is; None when nobody asked for its protection.

    Args:
        pod: as it is to be created.
        by_chance: its number, if it is one of several that nothing tells apart.

    Raises:
        UsageError: somebody asked, and not clearly: a malformed id or index, or containers that disagree.
    """
    identifier = _identifier(pod)
    if identifier is None:
        return None
    if (task := _texts(pod, "labels").get(TASK)) and not _is_named_already(pod, identifier):
        identifier = validate_name(f"metadata.labels[{TASK}] after the id", f"{identifier}-{task}")
    return Replica(identifier, _index(pod) if by_chance is None else by_chance)


def _is_named_already(pod: Object, identifier: str) -> bool:
    """Whether we wrote this id, with the task's name: the API server asks again when others have changed the pod."""
    protected = _texts(pod, "labels").get(names.PROTECTED) == "true"
    return protected and _texts(pod, "annotations").get(names.ID) == identifier


def is_unnamed(pod: Object) -> bool:
    """Whether nobody has said who it is: an empty variable says that it is not to be protected."""
    if names.ID in _texts(pod, "annotations"):
        return False
    variables = (one for container in _containers(pod) for one in container.get("env") or ())
    return all(one.get("name") != CHECKPOINT_VARIABLE for one in variables)


def is_numbered(pod: Object) -> bool:
    """Whether its controller, or whoever asked for its protection, numbered it."""
    return any(key in texts for _, key, texts in _numbers(pod))


def _identifier(pod: Object) -> str | None:
    """The containers' variable wins over the annotation, an empty one says nothing."""
    found: dict[str, str] = {}
    for position, container in enumerate(_containers(pod)):
        field = f"spec.containers[{position}].env[{CHECKPOINT_VARIABLE}]"
        for variable in container.get("env") or ():  # of two variables of one name the kubelet takes the last
            if variable.get("name") == CHECKPOINT_VARIABLE:
                found.pop(field, None)
                if value := _value(field, variable):
                    found[field] = value
    if len(set(found.values())) > 1:
        field, value = tuple(found.items())[-1]
        remedy = "give all containers of the pod the same value"
        raise UsageError(field, value, "is not what another container says", remedy=remedy)
    for field, value in found.items():
        return validate_name(field, value)
    if annotated := _texts(pod, "annotations").get(names.ID):
        return validate_name(f"metadata.annotations[{names.ID}]", annotated)
    return None


def _value(field: str, variable: dict[str, Any]) -> str:
    if variable.get("valueFrom"):
        remedy = "write the id as a plain value"
        raise UsageError(field, "valueFrom", "is not known when the pod is created", remedy=remedy)
    return str(variable.get("value") or "")


def _numbers(pod: Object) -> tuple[tuple[str, str, dict[str, str]], ...]:
    """Where a number may be: kind of text, key, texts."""
    labels, annotations = _texts(pod, "labels"), _texts(pod, "annotations")
    return (
        ("labels", COMPLETION_INDEX, labels),
        ("annotations", COMPLETION_INDEX, annotations),
        ("labels", POD_INDEX, labels),
        ("labels", TASK_INDEX, labels),
        ("annotations", names.INDEX, annotations),
    )


def _index(pod: Object) -> int:
    for field, key, texts in _numbers(pod):
        if (text := texts.get(key)) is not None:
            if not (text.isascii() and text.isdecimal()):
                raise UsageError(f"metadata.{field}[{key}]", text, "is no number", remedy="number replicas from 0")
            return int(text)
    return 0


def _containers(pod: Object) -> list[dict[str, Any]]:
    return (pod.get("spec") or {}).get("containers") or []


def _texts(pod: Object, kind: str) -> dict[str, str]:
    return (pod.get("metadata") or {}).get(kind) or {}
