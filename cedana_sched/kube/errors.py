"""Error responses of the API server as exceptions.

ApiError
├── ApiUnavailableError   unreachable, overloaded, too many requests: a retry may succeed
├── AbsentError           404
│   ├── NamespaceGoneError 403 or 404 of a create: its namespace is terminating, or does not exist
│   └── NotServedError    404 not caused by a missing object: its kind is not served
├── AlreadyExistsError    409 of a create
├── ConflictError         409 of a write whose precondition failed
├── GoneError             410: the resource version has expired, list again
├── UnreadableError       an object whose fields have other types than ours
└── RefusedByServerError  400, 401, 403, 422 and admission webhooks: an admin must usually act

`ApiUnavailableError` also stands for a response that is not an API server's: a proxy's page, truncated JSON.
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
    """The API server's `Status` object, in part."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None

    @property
    def is_of_a_gone_namespace(self) -> bool:
        """Return whether the admission plugin NamespaceLifecycle refused a create."""
        if self.details is None:
            return False
        is_absent = self.reason == "NotFound" and self.details.kind == "namespaces"
        return is_absent or any(cause.reason == "NamespaceTerminating" for cause in self.details.causes)


class ApiError(CedanaSchedError):
    """An error of a request. `status` is the HTTP status, 0 without a response; `reason` the API server's reason."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.reason = reason


class ApiUnavailableError(ApiError, RetryableError):
    """The API server is unreachable or overloaded: a retry may succeed."""


class AbsentError(ApiError):
    """The object does not exist, or its kind is not served."""


class NamespaceGoneError(AbsentError):
    """The object's namespace is terminating, or does not exist: no object can be created in it."""


class NotServedError(AbsentError):
    """The kind is not served, or not yet, or another server answered; the object may exist all the same."""


class AlreadyExistsError(ApiError):
    """An object of this name exists already."""


class ConflictError(ApiError):
    """The object was changed or replaced since it was read."""


class GoneError(ApiError):
    """The resource version has expired: list again."""


class RefusedByServerError(ApiError):
    """The request is forbidden or invalid."""


class UnreadableError(ApiError):
    """An object does not match its kind's schema; `message` names the field."""


def decoded(call: str, body: bytes, into: type[T]) -> T:
    """Decode the object in a response.

    Raises:
        UnreadableError: a field has another type.
        ApiUnavailableError: not JSON: a proxy's page, a truncated response.
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
    """Return the error for a response; `call` names the request, such as `PATCH /api/v1/...`."""
    try:
        answer = msgspec.json.decode(body, type=Status)
    except (ValueError, RecursionError):  # a proxy's page, a truncated response
        answer = Status(body[:200].decode(errors="replace"))
    kind: type[ApiError] = RefusedByServerError
    remedy = "see the message; rights are in the chart's RBAC"
    if status == 429 or status >= 500:
        kind, remedy = ApiUnavailableError, "it is tried again"
    elif answer.is_of_a_gone_namespace:
        kind, remedy = NamespaceGoneError, ""
    elif status == 409 and answer.reason == "AlreadyExists":
        kind, remedy = AlreadyExistsError, ""
    elif status == 404 and answer.reason != "NotFound":
        kind, remedy = NotServedError, ""
    elif status in {404, 409, 410}:
        kind, remedy = {404: AbsentError, 409: ConflictError, 410: GoneError}[status], ""
    message = f"{call}: {status} {answer.message or answer.reason}"
    return kind(message, status=status, reason=answer.reason, remedy=remedy)
