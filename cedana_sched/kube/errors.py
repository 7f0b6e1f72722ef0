"""What the API server answers when it says no, as errors of ours.

ApiError
├── ApiUnavailableError   not reachable, overloaded, too many requests: the same call may work later
├── AbsentError           404
│   ├── NamespaceGoneError 403 or 404 of a create: its namespace is being deleted, or is not there
│   └── NotServedError    404 that no API server's object is behind: its kind is not served
├── AlreadyExistsError    409 of a create
├── ConflictError         409 of a write whose precondition does not hold any more
├── GoneError             410: a watch must begin anew
├── UnreadableError       an object whose fields are not of the types that we read
└── RefusedByServerError  400, 401, 403, 422 and admission webhooks: mostly a person must act

`ApiUnavailableError` is also the answer that is none of an API server: a proxy's page, JSON that breaks off.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from cedana_sched.model.errors import CedanaSchedError, RetryableError

T = TypeVar("T")


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""


class _Details(msgspec.Struct, frozen=True):
    kind: str = ""
    causes: tuple[_Cause, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """The API server's `Status` object, as far as we read it."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None

    @property
    def is_of_a_gone_namespace(self) -> bool:
        """As the admission plugin NamespaceLifecycle answers a create."""
        if self.details is None:
            return False
        is_absent = self.reason == "NotFound" and self.details.kind == "namespaces"
        return is_absent or any(cause.reason == "NamespaceTerminating" for cause in self.details.causes)


class ApiError(CedanaSchedError):
    """`status` is the HTTP status, 0 when there was no answer; `reason` the API server's own word for it."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.reason = reason


class ApiUnavailableError(ApiError, RetryableError):
    """Unreachable or overloaded: the same call may succeed later."""


class AbsentError(ApiError):
    """There is no such object, or the kind is not served."""


class NamespaceGoneError(AbsentError):
    """Its namespace is being deleted, or is not there: nothing can be created in it."""


class NotServedError(AbsentError):
    """Its kind is not served, or not yet, or somebody else answers; it says nothing of the object."""


class AlreadyExistsError(ApiError):
    """An object of this name is there already."""


class ConflictError(ApiError):
    """The object has changed, or is another one, since it was read."""


class GoneError(ApiError):
    """The API server has forgotten that version: list again."""


class RefusedByServerError(ApiError):
    """Not allowed, or not valid."""


class UnreadableError(ApiError):
    """An object is not what its kind says; `message` names the field."""


def decoded(call: str, body: bytes, into: type[T]) -> T:
    """The object that an answer holds.

    Raises:
        UnreadableError: a field of it is of another type.
        ApiUnavailableError: it is no JSON: a proxy's page, an answer cut short.
    """
    try:
        return msgspec.json.decode(body, type=into)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableError(f"{call}: the object cannot be read: {error}") from error
    except ValueError as error:  # msgspec.DecodeError, UnicodeDecodeError
        began = body[:80].decode(errors="replace")
        message = f"{call}: the answer is no JSON: {error}; it begins with {began!r}"
        raise ApiUnavailableError(message, status=200, remedy="see what stands before the API server") from error


def error_of(call: str, status: int, body: bytes) -> ApiError:
    """The error that an answer stands for; `call` says what was asked, as `PATCH /api/v1/...`."""
    try:
        said = msgspec.json.decode(body, type=Status)
    except (ValueError, RecursionError):  # a proxy's page, an answer cut short
        said = Status(body[:200].decode(errors="replace"))
    kind: type[ApiError] = RefusedByServerError
    remedy = "see the message; rights are in the chart's RBAC"
    if status == 429 or status >= 500:
        kind, remedy = ApiUnavailableError, "it is tried again"
    elif said.is_of_a_gone_namespace:
        kind, remedy = NamespaceGoneError, ""
    elif status == 409 and said.reason == "AlreadyExists":
        kind, remedy = AlreadyExistsError, ""
    elif status == 404 and said.reason != "NotFound":
        kind, remedy = NotServedError, ""
    elif status in {404, 409, 410}:
        kind, remedy = {404: AbsentError, 409: ConflictError, 410: GoneError}[status], ""
    return kind(f"{call}: {status} {said.message or said.reason}", status=status, reason=said.reason, remedy=remedy)
