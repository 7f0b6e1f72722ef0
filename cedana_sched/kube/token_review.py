"""Authentication of bearer tokens by the API server (TokenReview)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import Resource

TOKEN_REVIEWS: Final = Resource("authentication.k8s.io/v1", "TokenReview", "tokenreviews", namespaced=False)
LONGEST_TOKEN: Final = 16 << 10
"""Characters."""


class User(msgspec.Struct, frozen=True):
    """User of an authenticated token."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class Reviewed(msgspec.Struct, frozen=True):
    """Status of a TokenReview."""

    authenticated: bool = False
    audiences: tuple[str, ...] = ()
    user: User = User()


class _TokenReview(msgspec.Struct, frozen=True):
    status: Reviewed = Reviewed()


async def review_token(api: Api, token: str, audiences: Sequence[str] = ()) -> Reviewed:
    """Have the API server review a token; the TokenReview is not persisted.

    Args:
        api: with permission to create TokenReviews.
        token: at most `LONGEST_TOKEN`.
        audiences: required audiences; empty: the API server itself.

    Raises:
        ApiError: the review failed.
    """
    spec: dict[str, Any] = {"token": token}
    if audiences:
        spec["audiences"] = list(audiences)
    return (await api.create(TOKEN_REVIEWS, {"metadata": {}, "spec": spec}, into=_TokenReview)).status
