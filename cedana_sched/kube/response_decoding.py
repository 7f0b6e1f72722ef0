"""Decoding of the API server's responses: each yields a valid value or a named problem, and nothing else.

Any client writes objects, and they persist for years: a field may have another type than ours. A response may be no
object at all, if a proxy or a gateway answers in the API server's place. And it may be larger than any legitimate
object (see `object_size_limits`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.errors import ApiError, error_of
from cedana_sched.kube.object_size_limits import cache_oversize_reason, oversize_reason
from cedana_sched.kube.resources import Resource

T = TypeVar("T")

_REMEDY = "see what stands before the API server"
_SHOWN = 80
_LONGEST_PROBLEM = 1_000
"""Characters; a problem may quote the object."""


class Unreadable(msgspec.Struct, frozen=True):
    """An object whose current version cannot be decoded; `problem` names the field, `metadata` the object."""

    metadata: Metadata
    problem: str


UnreadableSink = Callable[[Resource, Unreadable], None]
"""Receives each object that cannot be decoded; `EventRecorder.record_unreadable` publishes an Event on it."""


class Line(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class GarbledError(ApiError):
    """The response is not a watch: a new list is required."""


class _ObjectMetadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _ObjectWithMetadata(msgspec.Struct, frozen=True):
    metadata: _ObjectMetadata


class _Code(msgspec.Struct):
    code: int = 500


def read(resource: Resource, body: bytes | msgspec.Raw, into: type[T]) -> T | Unreadable:
    """Decode an object, or return why it cannot be decoded.

    Raises:
        GarbledError: its metadata cannot be decoded either.
    """
    if (problem := oversize_reason(resource, body)) is None:
        try:
            found = msgspec.json.decode(body, type=into)
        except (ValueError, RecursionError) as error:  # all msgspec errors, and text that is not UTF-8
            problem = str(error)
        else:
            if (problem := cache_oversize_reason(resource, found)) is None:
                return found
    return Unreadable(read_metadata(resource, body), problem[:_LONGEST_PROBLEM])


def read_metadata(resource: Resource, body: bytes | msgspec.Raw) -> Metadata:
    """Decode an object's identity, for `Unreadable`.

    Raises:
        GarbledError: the body has none.
    """
    try:
        named = msgspec.json.decode(body, type=_ObjectWithMetadata).metadata
    except (ValueError, RecursionError) as error:
        began = bytes(body)[:_SHOWN]
        message = f"{resource.plural}: there is something without metadata: {error}; it begins with {began!r}"
        raise GarbledError(message, status=200, remedy=_REMEDY) from error
    return Metadata(named.name, named.namespace, named.uid, named.resource_version)


def read_line(resource: Resource, line: bytes) -> Line:
    """Decode a line; raises GarbledError if it is invalid."""
    try:
        return msgspec.json.decode(line, type=Line)
    except (ValueError, RecursionError) as error:
        message = f"watch of {resource.plural}: a line cannot be read: {error}; it begins with {line[:_SHOWN]!r}"
        raise GarbledError(message, status=200, remedy=_REMEDY) from error


def read_error(resource: Resource, status: msgspec.Raw) -> ApiError:
    """Return the error in a watch event of type `ERROR`."""
    body = bytes(status)
    try:
        code = msgspec.json.decode(body, type=_Code).code
    except (ValueError, RecursionError):
        code = 500
    return error_of(f"watch of {resource.plural}", code, body)


def explain_watch_error(error: ApiError, resource: Resource) -> str:
    """Return why a kind cannot be watched, and the remedy."""
    group, _, _ = resource.group_version.rpartition("/")
    remedies = {
        401: "the API server does not accept our token: see the ServiceAccount; its token is read anew each time",
        403: f"a ClusterRole of ours lacks verbs [list, watch] on resources [{resource.plural}] of apiGroups"
        f" [{group!r}]: upgrade the release, which writes the chart's roles",
        404: f"{resource.group_version} {resource.kind} is not served: install it, or wait if the API server is new",
    }
    return f"{error.message} ({remedies.get(error.status) or error.remedy or 'it is tried again'})"
