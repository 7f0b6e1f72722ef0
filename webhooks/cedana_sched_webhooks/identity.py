"""Identity of a pod: the id that opts it in, and its number among the replicas of that id."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import CHECKPOINT_VARIABLE, validate_name
from cedana_sched.model.objects import names
from cedana_sched.model.pod_indexing import LONGEST_ID, PodPlace, name_with_role, pod_place_of

_JOB: Final = ("batch/v1", "Job")
ALIKE: Final = frozenset({("apps/v1", "ReplicaSet"), ("v1", "ReplicationController")})
"""Controllers whose pods are interchangeable, and of which two can always run at a time: even with one replica, while
it is being replaced."""

IO_URING_VARIABLE: Final = "UV_USE_IO_URING"
"""The variable of libuv; see `PodDefaults`."""


class Replica(msgspec.Struct, frozen=True):
    """One of the pods that share an id; `namespace / id / index` names its snapshots."""

    id: str
    index: int

    def __str__(self) -> str:
        return f"{self.id}/{self.index}"


def replica_of(pod: Object, by_chance: int | None = None, job: str = "") -> Replica | None:
    """Return the identity of this pod, or of a pod of this template; None if it requests no protection.

    Args:
        pod: as it will be created.
        by_chance: random number, if the pod is one of several indistinguishable ones.
        job: name of its Job, if several Jobs share the id.

    Raises:
        UsageError: it requests protection ambiguously: a malformed id or index, or containers that disagree; or nothing
            distinguishes the pod from others of its id.
    """
    identifier = _requested_identifier_of(pod)
    if identifier is None:
        return None
    place = place_among_replicas(pod)
    role = (*((job,) if job else ()), *_role_of_pod(pod, place))
    if role and not _is_named_already(pod, identifier, role):
        identifier = validate_name("the id, with the role of the pod behind it", name_with_role(identifier, role))
    if by_chance is not None:
        return Replica(identifier, by_chance)
    if place.index is None and not place.is_only:
        _refuse_unnumbered(pod)
    return Replica(identifier, place.index or 0)


def place_among_replicas(pod: Object) -> PodPlace:
    """Return the pod's place among those of its id, by its labels.

    Raises:
        UsageError: a label that must be a number is none.
    """
    return pod_place_of(_labels_or_annotations(pod, "labels"), _labels_or_annotations(pod, "annotations"))


def _role_of_pod(pod: Object, place: PodPlace) -> tuple[str, ...]:
    """Return the pod's role; empty if its id derives from its Job's own name and uid, which no other Job shares."""
    is_own = (
        _labels_or_annotations(pod, "annotations").get(names.DERIVED_ID) == "true"
        and owner_kind_of(controlling_owner_of(pod)) == _JOB
    )
    return () if is_own else place.role


def _refuse_unnumbered(pod: Object) -> None:
    """Refuse pods of unknown controllers: these may run several pods, which would continue each other's memory."""
    owner = controlling_owner_of(pod)
    kind = owner_kind_of(owner)
    if not owner or kind == _JOB or kind in ALIKE:
        return
    field, remedy = (
        "metadata.ownerReferences",
        f"give each of its pods an id of its own, or the annotation {names.INDEX}",
    )
    raise UsageError(field, f"{kind[1]}/{owner.get('name')}", "has labelled no pod with its number", remedy=remedy)


def controlling_owner_of(pod: Object) -> dict[str, Any]:
    """Return the owner reference with `controller: true`; empty if there is none."""
    owners = (pod.get("metadata") or {}).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def owner_kind_of(owner: dict[str, Any]) -> tuple[str, str]:
    """Return the owner's `apiVersion` and `kind`."""
    return str(owner.get("apiVersion")), str(owner.get("kind"))


def _is_named_already(pod: Object, identifier: str, role: tuple[str, ...]) -> bool:
    """Whether our webhook already wrote this id with the role: the API server may reinvoke it after others."""
    protected = _labels_or_annotations(pod, "labels").get(names.PROTECTED) == "true"
    is_ours = protected and _labels_or_annotations(pod, "annotations").get(names.ID) == identifier
    return is_ours and (identifier.endswith(f"-{'-'.join(role)}") or len(identifier) == LONGEST_ID)


def is_without_id(pod: Object) -> bool:
    """Whether the pod has no id at all: an empty variable opts it out."""
    if names.ID in _labels_or_annotations(pod, "annotations"):
        return False
    variables = (one for container in _regular_containers_of(pod) for one in container.get("env") or ())
    return all(one.get("name") != CHECKPOINT_VARIABLE for one in variables)


def is_protection_requested(pod: Object) -> bool:
    """Whether the pod names an id, valid or not; `replica_of` reports what is wrong."""
    try:
        return _requested_identifier_of(pod) is not None
    except UsageError:
        return True


def keep_read_variables(pod: Object) -> Object:
    """Return the pod with all variables of its containers removed except those that we read.

    A container that had others keeps a nameless one in their place: what is added to its variables must not replace
    them.
    """
    containers = [
        {**one, "env": _read_variables(one["env"])} if one.get("env") else one for one in _regular_containers_of(pod)
    ]
    return {**pod, "spec": {**pod["spec"], "containers": containers}} if containers else pod


def _read_variables(variables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in variables if one.get("name") in {CHECKPOINT_VARIABLE, IO_URING_VARIABLE}] or [{}]


def is_numbered(pod: Object) -> bool:
    """Whether the pod's controller or user numbered it."""
    place = place_among_replicas(pod)
    return place.index is not None or place.is_only


def _requested_identifier_of(pod: Object) -> str | None:
    """Return the id: a container variable takes precedence over the annotation; an empty variable does not count."""
    found: dict[str, str] = {}
    for position, container in enumerate(_regular_containers_of(pod)):
        field = f"spec.containers[{position}].env[{CHECKPOINT_VARIABLE}]"
        for variable in container.get("env") or ():  # of two variables of one name the kubelet uses the last
            if variable.get("name") == CHECKPOINT_VARIABLE:
                found.pop(field, None)
                if value := _plain_variable_value(field, variable):
                    found[field] = value
    if len(set(found.values())) > 1:
        field, value = tuple(found.items())[-1]
        remedy = "give all containers of the pod the same value"
        raise UsageError(field, value, "is not what another container says", remedy=remedy)
    for field, value in found.items():
        return validate_name(field, value)
    if annotated := _labels_or_annotations(pod, "annotations").get(names.ID):
        return validate_name(f"metadata.annotations[{names.ID}]", annotated)
    return None


def _plain_variable_value(field: str, variable: dict[str, Any]) -> str:
    if variable.get("valueFrom"):
        remedy = "write the id as a plain value"
        raise UsageError(field, "valueFrom", "is not known when the pod is created", remedy=remedy)
    return str(variable.get("value") or "")


def _regular_containers_of(pod: Object) -> list[dict[str, Any]]:
    return (pod.get("spec") or {}).get("containers") or []


def _labels_or_annotations(pod: Object, kind: str) -> dict[str, str]:
    return (pod.get("metadata") or {}).get(kind) or {}
