"""The border at which what an API server sends is read: a valid value, or a named problem, and never anything else.

Objects are written by anybody, and kept for years: a field may be of another type than the one that we read. What comes
may also be no object at all, where a proxy or a gateway answers in the API server's place. And it may be larger than
any that somebody means (see `bounds`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from cedana_sched.kube.bounds import too_large, too_much
from cedana_sched.kube.errors import ApiError, error_of
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import Resource

T = TypeVar("T")

_REMEDY = "see what stands before the API server"
_SHOWN = 80
_LONGEST_PROBLEM = 1_000
"""Characters; it may quote what stands in the object."""


class Unreadable(msgspec.Struct, frozen=True):
    """One object as it is now that cannot be read; `problem` names the field. Of `metadata` there is whose it is."""

    metadata: Metadata
    problem: str


UnreadableSink = Callable[[Resource, Unreadable], None]
"""Hears of each object that cannot be read; `EventRecorder.unreadable` names it on the object."""


class Line(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class GarbledError(ApiError):
    """What comes is no watch: only a new list tells what there is."""


class _Name(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Name


class _Code(msgspec.Struct):
    code: int = 500


def read(resource: Resource, body: bytes | msgspec.Raw, into: type[T]) -> T | Unreadable:
    """An object, or why it cannot be read.

    Raises:
        GarbledError: it has no metadata either.
    """
    if (problem := too_large(resource, body)) is None:
        try:
            found = msgspec.json.decode(body, type=into)
        except (ValueError, RecursionError) as error:  # all of msgspec's errors, and text that is no UTF-8
            problem = str(error)
        else:
            if (problem := too_much(resource, found)) is None:
                return found
    return Unreadable(read_metadata(resource, body), problem[:_LONGEST_PROBLEM])


def read_metadata(resource: Resource, body: bytes | msgspec.Raw) -> Metadata:
    """Whose object it is, as `Unreadable` has it.

    Raises:
        GarbledError: nobody's.
    """
    try:
        named = msgspec.json.decode(body, type=_Named).metadata
    except (ValueError, RecursionError) as error:
        began = bytes(body)[:_SHOWN]
        message = f"{resource.plural}: there is something without metadata: {error}; it begins with {began!r}"
        raise GarbledError(message, status=200, remedy=_REMEDY) from error
    return Metadata(named.name, named.namespace, named.uid, named.resource_version)


def read_line(resource: Resource, line: bytes) -> Line:
    """Raises GarbledError where it is none."""
    try:
        return msgspec.json.decode(line, type=Line)
    except (ValueError, RecursionError) as error:
        message = f"watch of {resource.plural}: a line cannot be read: {error}; it begins with {line[:_SHOWN]!r}"
        raise GarbledError(message, status=200, remedy=_REMEDY) from error


def read_error(resource: Resource, status: msgspec.Raw) -> ApiError:
    """What the API server says in a line of type `ERROR`."""
    body = bytes(status)
    try:
        code = msgspec.json.decode(body, type=_Code).code
    except (ValueError, RecursionError):
        code = 500
    return error_of(f"watch of {resource.plural}", code, body)


def explained(error: ApiError, resource: Resource) -> str:
    """Why a kind cannot be followed, and what to do about it."""
    group, _, _ = resource.group_version.rpartition("/")
    remedies = {
        401: "the API server does not believe our token: see the ServiceAccount; its token is read anew each time",
        403: f"a ClusterRole of ours lacks verbs [list, watch] on resources [{resource.plural}] of apiGroups"
        f" [{group!r}]: upgrade the release, which writes the chart's roles",
        404: f"{resource.group_version} {resource.kind} is not served: install it, or wait if the API server is new",
    }
    return f"{error.message} ({remedies.get(error.status) or error.remedy or 'it is tried again'})"
