"""The API server's question and our answer, `admission.k8s.io/v1`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from cedana_sched.kube.client import Object

API_VERSION: Final = "admission.k8s.io/v1"

LONGEST_WARNING = 256
"""Characters; the API server cuts longer ones off."""
MOST_WARNINGS = 32
"""It takes 4,096 characters in all."""
LARGEST_BYTES: Final = 512 << 10
"""Of an object that is looked at as a whole, as JSON. Nobody means a larger one: Kubernetes allows 256 KiB of
annotations, and Linux 128 KiB of each argument and variable."""


class UserInfo(msgspec.Struct, frozen=True):
    username: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """What is about to happen. `object` is None for DELETE, `old_object` for CREATE."""

    uid: str
    namespace: str = ""
    name: str = ""
    user_info: UserInfo = UserInfo()
    object: Object | None = None
    old_object: Object | None = None
    dry_run: bool | None = None
    is_large: bool = False
    """Whether only as much was decoded as `Shape.large` says."""


class Shape(msgspec.Struct, frozen=True):
    """What is looked at of an object and of the one before, as types that msgspec decodes to dictionaries.

    `large`: the same two where one of the objects is larger than `largest_bytes`; None: such ones are not looked at.
    """

    object: Any
    before: Any = dict
    large: tuple[Any, Any] | None = None
    largest_bytes: int = LARGEST_BYTES


WHOLE: Final = Shape(dict)


class _Asked(msgspec.Struct, frozen=True, rename="camel"):
    """As `Request`; the objects are not decoded yet."""

    uid: str
    namespace: str = ""
    name: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = None


class _Review(msgspec.Struct, frozen=True):
    request: _Asked


class Refusal(msgspec.Struct, frozen=True):
    """Why not: an HTTP status, Kubernetes' own word for it (`reason` of metav1.Status) and a sentence for people."""

    code: int
    reason: str
    message: str
    retry_after_seconds: int | None = None
    """For clients that repeat the request themselves; the API server makes the header `Retry-After` of it."""


class Answer(msgspec.Struct, frozen=True):
    """Allowed unless there is a refusal. `patch` is a JSON patch; `decision` is a word for the metrics."""

    decision: str
    patch: Sequence[Object] = ()
    warnings: tuple[str, ...] = ()
    refusal: Refusal | None = None


_reviews = msgspec.json.Decoder(_Review)


def read(body: bytes | bytearray, shape: Shape = WHOLE) -> Request:
    """The question in a request's body.

    Raises:
        ValueError: it is none.
        RecursionError: it nests too deep.
    """
    asked = _reviews.decode(body).request
    is_large = any(memoryview(one).nbytes > shape.largest_bytes for one in (asked.object, asked.old_object))
    looked_at = (shape.object, shape.before) if not is_large else shape.large or (None, None)
    now, before = (
        None if type_ is None else _decoder(type_).decode(one)
        for one, type_ in zip((asked.object, asked.old_object), looked_at, strict=True)
    )
    return Request(asked.uid, asked.namespace, asked.name, asked.user_info, now, before, asked.dry_run, is_large)


@lru_cache(maxsize=64)  # as many as there are shapes
def _decoder(type_: Any) -> msgspec.json.Decoder[Object | None]:
    """Of an object that may be absent."""
    return msgspec.json.Decoder(type_ | None)


def write(request: Request, answer: Answer) -> bytes:
    """The body of the response."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": answer.refusal is None}
    if answer.refusal is not None:
        refusal = answer.refusal
        response["status"] = {"code": refusal.code, "reason": refusal.reason, "message": refusal.message}
        if refusal.retry_after_seconds is not None:
            response["status"]["details"] = {"retryAfterSeconds": refusal.retry_after_seconds}
    if answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(answer.patch)).decode()
    if answer.warnings:
        response["warnings"] = [warning[:LONGEST_WARNING] for warning in answer.warnings[:MOST_WARNINGS]]
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
