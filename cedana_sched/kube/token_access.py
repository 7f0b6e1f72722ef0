"""Authorization by the API server: whether a bearer token may read a path that our components serve.

The API server authenticates the token (TokenReview) and authorizes its user (SubjectAccessReview on a non-resource
path), as for its own `/metrics`. Results are cached for a while, and few reviews run at a time: clients can present any
number of tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec
import structlog

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.token_review import LONGEST_TOKEN, review_token

log = structlog.get_logger(__name__)

ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
KEPT_SECONDS: Final = 60.0
MOST_KEPT: Final = 256
REVIEWS_AT_ONCE: Final = 2
MOST_WAITING: Final = 16


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


class TokenAccess:
    """Authorizes requests for one path.

    Args:
        api: with permission to create TokenReviews and SubjectAccessReviews.
        path: as in `nonResourceURLs` of a ClusterRole; the verb is `get`.
        clock: seconds of a monotonic clock.
    """

    def __init__(self, api: Api, path: str = "/metrics", clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._path = path
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, HTTPStatus]] = OrderedDict()
        """Expiry and result by the token's digest."""
        self._turn = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._waiting = 0

    async def __call__(self, token: str) -> HTTPStatus:
        """Return the response status for a token: OK if its user may read the path."""
        if not token or len(token) > LONGEST_TOKEN:
            return HTTPStatus.UNAUTHORIZED
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        if (known := self._cached_status(digest)) is not None:
            return known
        if self._waiting >= MOST_WAITING:
            return HTTPStatus.TOO_MANY_REQUESTS
        self._waiting += 1
        try:
            async with self._turn:
                if (
                    known := self._cached_status(digest)
                ) is None:  # else another request has reviewed the token meanwhile
                    known = await self._review_access(token)
                    self._cache_status(digest, known)
                return known
        except ApiError as error:
            log.warning("readers of metrics cannot be authorized", error=error.message, remedy=error.remedy)
            return HTTPStatus.SERVICE_UNAVAILABLE
        finally:
            self._waiting -= 1

    async def _review_access(self, token: str) -> HTTPStatus:
        reviewed = await review_token(self._api, token)
        if not reviewed.authenticated:
            return HTTPStatus.UNAUTHORIZED
        user = reviewed.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra.items()},
            "nonResourceAttributes": {"path": self._path, "verb": "get"},
        }
        judged = await self._api.create(ACCESS_REVIEWS, {"metadata": {}, "spec": spec}, into=_AccessReview)
        return HTTPStatus.OK if judged.status.allowed else HTTPStatus.FORBIDDEN

    def _cached_status(self, digest: bytes) -> HTTPStatus | None:
        until, status = self._kept.get(digest, (-math.inf, HTTPStatus.UNAUTHORIZED))
        return status if self._clock() < until else None

    def _cache_status(self, digest: bytes, status: HTTPStatus) -> None:
        self._kept.pop(digest, None)
        self._kept[digest] = self._clock() + KEPT_SECONDS, status
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
