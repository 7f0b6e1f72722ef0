"""Kinds of objects that Kueue stops by one field: `spec.suspend`, or `spec.runPolicy.suspend`.

Kueue evicts an object of such a kind by setting the field (`GenericJob.Suspend`, pkg/controller/jobframework). The
object's controller then deletes the pods. Nothing else about a kind matters here, so an admin can name any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Self

import msgspec
from pydantic import Field, field_validator

from cedana_sched.adapter.deletion_answers import DeletionSettings
from cedana_sched.kube.builtin_kinds import OwnerReference
from cedana_sched.kube.resources import JOBS, Resource
from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import UserWritten

_API_VERSION: Final = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/v[0-9][a-z0-9]*$"
_KIND: Final = r"^[A-Z][A-Za-z0-9]*$"
_RESOURCE: Final = r"^[a-z][a-z0-9-]*$"
_IDENTITY_MARKS: Final = (f'"{names.ID}"'.encode(), f'"{CHECKPOINT_VARIABLE}"'.encode())


class ManagedKind(UserWritten):
    """A kind whose objects Kueue suspends, or that stands between such an object and its pods."""

    api_version: Annotated[str, Field(pattern=_API_VERSION)]
    kind: Annotated[str, Field(pattern=_KIND)]
    resource: Annotated[str, Field(pattern=_RESOURCE)]
    """The plural, as in URLs and roles."""

    def to_resource(self) -> Resource:
        return Resource(self.api_version, self.kind, self.resource)


class Settings(DeletionSettings):
    """The section `kueue` of the adapters' settings in the coordinator's file."""

    kinds: tuple[ManagedKind, ...] = ()
    """Beside Job. A kind that the cluster does not serve is waited for."""

    @field_validator("kinds")
    @classmethod
    def _check_kinds_differ(cls, kinds: tuple[ManagedKind, ...]) -> tuple[ManagedKind, ...]:
        """Refuse a kind that is named twice, or that is a Job: two caches of one object would disagree."""
        known = {_group_and_kind(JOBS.group_version, JOBS.kind)}
        for one in kinds:
            key = _group_and_kind(one.api_version, one.kind)
            if key in known:
                raise ValueError(f"{one.kind} of {key[0]} is there already: name each kind once, and not Job")
            known.add(key)
        return kinds


class ManagedKinds:
    """The kinds whose objects are followed, by API group and name: a reference may name another version."""

    def __init__(self, kinds: Iterable[ManagedKind] = ()) -> None:
        self.resources: Final[tuple[Resource, ...]] = (JOBS, *(one.to_resource() for one in kinds))
        """Job comes first."""
        self._by_name: Mapping[tuple[str, str], Resource] = {
            _group_and_kind(one.group_version, one.kind): one for one in self.resources
        }

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.kinds)

    def resource_of(self, owner: OwnerReference | None) -> Resource | None:
        """Return the resource of an owner; None if its kind is not followed."""
        return None if owner is None else self._by_name.get(_group_and_kind(owner.api_version, owner.kind))


def is_of_kind(owner: OwnerReference, resource: Resource) -> bool:
    """Return whether an owner is of that kind, in whatever version."""
    return _group_and_kind(owner.api_version, owner.kind) == _group_and_kind(resource.group_version, resource.kind)


class _RunPolicy(msgspec.Struct, frozen=True):
    suspend: bool | None = None


class _SuspendFields(msgspec.Struct, frozen=True, rename="camel"):
    suspend: bool | None = None
    run_policy: _RunPolicy | None = None


def read_suspended(spec: msgspec.Raw) -> bool:
    """Return whether the spec suspends its object.

    Raises:
        msgspec.ValidationError: a field has another type.
    """
    fields = msgspec.json.decode(spec, type=_SuspendFields | None)
    if fields is None:
        return False
    return bool(fields.suspend) or (fields.run_policy is not None and bool(fields.run_policy.suspend))


def has_identity(spec: msgspec.Raw) -> bool:
    """Return whether a spec names an id for pods anywhere, as annotation or variable: templates nest variously."""
    text = bytes(spec)
    return any(mark in text for mark in _IDENTITY_MARKS)


def _group_and_kind(api_version: str, kind: str) -> tuple[str, str]:
    return api_version.rpartition("/")[0], kind
