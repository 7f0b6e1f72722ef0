"""AdmissionReview requests and responses, `admission.k8s.io/v1`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from cedana_sched.kube.client import Object

API_VERSION: Final = "admission.k8s.io/v1"

LONGEST_WARNING = 256
"""Characters; the API server truncates longer ones."""
MOST_WARNINGS = 32
"""The API server accepts 4,096 characters in all."""
LARGEST_BYTES: Final = 512 << 10
"""Size limit, as JSON, of an object that is decoded whole. No legitimate object is larger: Kubernetes allows 256 KiB of
annotations, and Linux 128 KiB per argument and variable."""


class UserInfo(msgspec.Struct, frozen=True):
    username: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """An admission request. `object` is None for DELETE, `old_object` for CREATE."""

    uid: str
    namespace: str = ""
    name: str = ""
    user_info: UserInfo = UserInfo()
    object: Object | None = None
    old_object: Object | None = None
    dry_run: bool | None = None
    is_large: bool = False
    """Whether the objects were decoded only as far as `Shape.large`."""


class Shape(msgspec.Struct, frozen=True):
    """The decoded parts of the object and the old object, as types that msgspec decodes to dictionaries.

    `large`: the same two if one of the objects is larger than `largest_bytes`; None: such objects are not decoded.
    """

    object: Any
    before: Any = dict
    large: tuple[Any, Any] | None = None
    largest_bytes: int = LARGEST_BYTES


WHOLE: Final = Shape(dict)


class _RawRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Like `Request`, with the objects still raw."""

    uid: str
    namespace: str = ""
    name: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = None


class _Review(msgspec.Struct, frozen=True):
    request: _RawRequest


class Refusal(msgspec.Struct, frozen=True):
    """A refusal: HTTP status, `reason` of metav1.Status, and a message for the user."""

    code: int
    reason: str
    message: str
    retry_after_seconds: int | None = None
    """For clients that retry; the API server sends it as the header `Retry-After`."""


class Answer(msgspec.Struct, frozen=True):
    """Allowed unless `refusal` is set. `patch` is a JSON patch; `decision` is a metric label."""

    decision: str
    patch: Sequence[Object] = ()
    warnings: tuple[str, ...] = ()
    refusal: Refusal | None = None


_reviews = msgspec.json.Decoder(_Review)


def read(body: bytes | bytearray, shape: Shape = WHOLE) -> Request:
    """Decode a request body.

    Raises:
        ValueError: it is no AdmissionReview.
        RecursionError: it nests too deep.
    """
    review = _reviews.decode(body).request
    is_large = any(memoryview(one).nbytes > shape.largest_bytes for one in (review.object, review.old_object))
    looked_at = (shape.object, shape.before) if not is_large else shape.large or (None, None)
    now, before = (
        None if type_ is None else _decoder(type_).decode(one)
        for one, type_ in zip((review.object, review.old_object), looked_at, strict=True)
    )
    return Request(review.uid, review.namespace, review.name, review.user_info, now, before, review.dry_run, is_large)


@lru_cache(maxsize=64)  # one per shape
def _decoder(type_: Any) -> msgspec.json.Decoder[Object | None]:
    """Return a decoder for an object that may be absent."""
    return msgspec.json.Decoder(type_ | None)


def write(request: Request, answer: Answer) -> bytes:
    """Encode the response body."""
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
