"""What a person may read of a cluster, page by page; a right that is missing is named.

All commands of a cluster read through it, so that none takes 'you may not see' for 'it is not there'. It writes
nothing: what it tries to create is a dry run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import (
    AbsentError,
    ApiError,
    ApiUnavailableError,
    RefusedByServerError,
    UnreadableError,
)
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.response_decoding import Unreadable, UnreadableSink, read
from cedana_sched.model.errors import CedanaSchedError

T = TypeVar("T")

MOST_NAMES: Final = 10
"""Of what a finding names; it counts the others."""
_NODES_PROXY: Final = Resource("v1", "Node", "nodes/proxy", namespaced=False)
"""A right, not a kind."""
_DENIED: Final = frozenset({401, 403})
_BY_RIGHTS: Final = "cannot create resource"
"""In a 403 of the authorizer, and not of admission (`ForbiddenStatusError` of k8s.io/apiserver's responsewriters)."""


class MissingPermissionError(CedanaSchedError):
    """What a command needs may not be read by this person: `message` names the right."""


class ClusterReader:
    """Every method raises MissingPermissionError if a right is missing, and ApiUnavailableError without an answer."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def read_objects(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "", into: type[T]
    ) -> tuple[T, ...]:
        """All of a kind that the selectors allow, everywhere or in one namespace.

        Raises:
            AbsentError: the kind is not served.
        """
        try:
            found, _ = await self._api.list_all(resource, namespace, _query(labels, fields), into=into)
        except RefusedByServerError as error:
            raise permission_error(error, "list", resource, namespace) from error
        return found

    async def read_readable(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        into: type[T],
        unreadable: UnreadableSink,
    ) -> list[T]:
        """As `read_objects`, without those that cannot be decoded: one object must not hide all others.

        Raises:
            AbsentError: the kind is not served.
        """
        objects: list[T] = []

        def see(body: msgspec.Raw) -> None:
            found = read(resource, body, into)
            if isinstance(found, Unreadable):
                unreadable(resource, found)
            else:
                objects.append(found)

        try:
            await self._api.list_each(resource, namespace, _query(labels, fields), see)
        except RefusedByServerError as error:
            raise permission_error(error, "list", resource, namespace) from error
        return objects

    async def find(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T | None:
        """One object, or None where there is none."""
        try:
            return await self._api.find(resource, name, namespace, into=into)
        except RefusedByServerError as error:
            raise permission_error(error, "get", resource, namespace) from error

    async def exists(self, resource: Resource, name: str, namespace: str | None = None) -> bool:
        """Whether there is such an object; of a Secret nothing that it holds is read, though the right is the same."""
        try:
            found = await self._api.find_metadata(resource, name, namespace, into=PartialObject)
        except RefusedByServerError as error:
            raise permission_error(error, "get", resource, namespace) from error
        return found is not None

    async def read_kubelet_configuration(self, node: str) -> dict[str, Any] | None:
        """The configuration of a node's kubelet; None if the API server does not reach the kubelet, or it is gone.

        An API server that does not answer at all is not distinguished from that.
        """
        try:
            return await self._api.read_kubelet_configuration(node)
        except (AbsentError, ApiUnavailableError, UnreadableError):
            return None
        except RefusedByServerError as error:
            raise permission_error(error, "get", _NODES_PROXY) from error

    async def create_dry_run(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        """Return the object that would be stored after all admission calls; nothing is stored.

        Raises:
            ApiError: an admission call refuses it.
        """
        try:
            return await self._api.create_dry(resource, body, into=into)
        except RefusedByServerError as error:
            if error.status == 403 and _BY_RIGHTS not in error.message:
                raise
            raise permission_error(error, "create", resource, body["metadata"].get("namespace")) from error


def _query(labels: str, fields: str) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}


def permission_error(error: ApiError, verb: str, resource: Resource, namespace: str | None = None) -> CedanaSchedError:
    """Return the error that names the right which was missing; `error` itself if it has another cause."""
    if error.status not in _DENIED:
        return error
    group = resource.group_version.rpartition("/")[0]
    kind = f"{resource.plural}.{group}" if group else resource.plural
    where = f" in namespace {namespace}" if namespace else ""
    return MissingPermissionError(f"needs {verb} on {kind}{where}", remedy="run it as a user with that right")


def summarize_names(names: Iterable[str]) -> str:
    """The first of them in their order, and how many more there are."""
    known = sorted(set(names))
    more = len(known) - MOST_NAMES
    return ", ".join(known[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
