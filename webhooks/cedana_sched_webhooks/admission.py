"""The API server's question and our answer, `admission.k8s.io/v1`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cedana_sched.kube.client import Object

API_VERSION: Final = "admission.k8s.io/v1"

LONGEST_WARNING = 256
"""Characters; the API server cuts longer ones off."""


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


class Review(msgspec.Struct, frozen=True):
    request: Request


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


_reviews = msgspec.json.Decoder(Review)


def read(body: bytes) -> Request:
    """The question in a request's body.

    Raises:
        ValueError: it is none.
        RecursionError: it nests too deep.
    """
    return _reviews.decode(body).request


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
        response["warnings"] = [warning[:LONGEST_WARNING] for warning in answer.warnings]
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
