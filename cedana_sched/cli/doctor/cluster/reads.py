"""Reads of a cluster with the user's permissions, paginated; a missing permission ends its check by an error.

All cluster checks read through `Reads`, so that no check mistakes a denied read for an absent object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError, RefusedByServerError
from cedana_sched.kube.objects import PartialObject
from cedana_sched.kube.resources import Resource
from cedana_sched.model.errors import CedanaSchedError

T = TypeVar("T")

MOST_NAMES: Final = 10
"""Maximum names in a finding, which has only the count of further ones."""
_DENIED: Final = frozenset({401, 403})


class UnknownError(CedanaSchedError):
    """The user lacks a permission that a check needs; `message` names the permission."""


class Reads:
    """Reads of a cluster. Methods raise UnknownError without permission, ApiUnavailableError without an API server."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def listed(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "", into: type[T]
    ) -> tuple[T, ...]:
        """Return all objects of a kind that match the selectors, cluster-wide or in one namespace.

        Raises:
            AbsentError: the API server does not serve the kind.
        """
        query = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        try:
            found, _ = await self._api.list_all(resource, namespace, query, into=into)
        except RefusedByServerError as error:
            raise _reason(error, "list", resource, namespace) from error
        return found

    async def find(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T | None:
        """Return one object; None if it does not exist."""
        try:
            return await self._api.find(resource, name, namespace, into=into)
        except RefusedByServerError as error:
            raise _reason(error, "get", resource, namespace) from error

    async def exists(self, resource: Resource, name: str, namespace: str | None = None) -> bool:
        """Whether an object exists. Reads metadata only, so no data of a Secret, though the permission is the same."""
        try:
            found = await self._api.find_metadata(resource, name, namespace, into=PartialObject)
        except RefusedByServerError as error:
            raise _reason(error, "get", resource, namespace) from error
        return found is not None


def _reason(error: ApiError, verb: str, resource: Resource, namespace: str | None) -> CedanaSchedError:
    if error.status not in _DENIED:
        return error
    group = resource.group_version.rpartition("/")[0]
    kind = f"{resource.plural}.{group}" if group else resource.plural
    where = f" in namespace {namespace}" if namespace else ""
    return UnknownError(f"not known: needs {verb} on {kind}{where}", remedy="ask whoever has that right to look")


def named(names: Iterable[str]) -> str:
    """Return the first names in alphabetical order, and the count of further ones."""
    known = sorted(set(names))
    more = len(known) - MOST_NAMES
    return ", ".join(known[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
