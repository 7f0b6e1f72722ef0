"""Metrics are read by whom the API server lets, and any number of tokens costs it little."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from cedana_sched.component.health import serve_health
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.token_access import (
    ACCESS_REVIEWS,
    KEPT_SECONDS,
    MOST_KEPT,
    MOST_WAITING,
    REVIEWS_AT_ONCE,
    TokenAccess,
)
from cedana_sched.kube.token_review import LONGEST_TOKEN, TOKEN_REVIEWS

PROMETHEUS = {"username": "system:serviceaccount:monitoring:prometheus", "groups": ["g"], "extra": {"k": ["v"]}}


class Reviews:
    """An API server that knows tokens by their owners, of whom only Prometheus may read metrics."""

    def __init__(self) -> None:
        self.asked: list[Object] = []
        self.at_once = self.most_at_once = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_away = False

    async def create(self, resource: Resource, body: Object, *, into: type[Any]) -> Any:
        self.asked.append({resource.plural: body["spec"]})
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.answers.wait()
        self.at_once -= 1
        if self.is_away:
            raise ApiUnavailableError("away", status=503)
        if resource is TOKEN_REVIEWS:
            user = {"prometheus": PROMETHEUS, "tenant": {"username": "tenant"}}.get(body["spec"]["token"])
            status: Object = {"authenticated": user is not None} | ({"user": user} if user is not None else {})
        else:
            assert resource is ACCESS_REVIEWS
            attributes = body["spec"]["nonResourceAttributes"]
            allowed = body["spec"]["user"] == PROMETHEUS["username"]
            status = {"allowed": allowed and attributes == {"path": "/metrics", "verb": "get"}}
        return msgspec.convert({"status": status}, into)


def access(reviews: Reviews, clock: list[float] | None = None) -> TokenAccess:
    now = clock or [0.0]
    return TokenAccess(reviews, clock=lambda: now[0])  # type: ignore[arg-type]  # as much of one as is called


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401), ("Bearer ", 401), ("Bearer nobody", 401), ("Basic prometheus", 401), ("prometheus", 401),
        (f"Bearer {'x' * 7000}", 401), ("Bearer tenant", 403), ("Bearer prometheus", 200), ("bearer prometheus", 200),
    ],
)  # fmt: skip
async def test_metrics_are_shown_to_whom_the_api_server_lets(header: str | None, status: int) -> None:
    headers = {"Authorization": header} if header is not None else {}
    async with (
        serve_health(0, {}, CollectorRegistry(), host="127.0.0.1", readable=access(Reviews())) as port,
        aiohttp.ClientSession() as client,
    ):
        async with client.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as answer:
            assert answer.status == status
            assert answer.headers.get("WWW-Authenticate") == ("Bearer" if status == 401 else None)
        for probe in ("/healthz", "/readyz"):
            async with client.get(f"http://127.0.0.1:{port}{probe}") as answer:
                assert answer.status == 200


async def test_the_api_server_is_told_all_that_it_has_said_of_the_user() -> None:
    reviews = Reviews()
    assert await access(reviews)("prometheus") is HTTPStatus.OK
    [_, asked] = reviews.asked
    spec = asked["subjectaccessreviews"]
    assert (spec["user"], spec["groups"], spec["extra"]) == (PROMETHEUS["username"], ["g"], {"k": ["v"]})


async def test_what_was_said_is_kept_for_a_while() -> None:
    reviews, now = Reviews(), [0.0]
    may = access(reviews, now)
    for _ in range(3):
        assert await may("prometheus") is HTTPStatus.OK
        assert await may("nobody") is HTTPStatus.UNAUTHORIZED
    assert len(reviews.asked) == 3
    now[0] += KEPT_SECONDS
    assert await may("prometheus") is HTTPStatus.OK
    assert len(reviews.asked) == 5
    for number in range(2 * MOST_KEPT):
        await may(f"junk-{number}")
    assert len(may._kept) == MOST_KEPT


async def test_few_are_asked_about_at_a_time_and_few_wait() -> None:
    reviews = Reviews()
    may = access(reviews)
    reviews.answers.clear()
    calls = [asyncio.create_task(may(f"junk-{number}")) for number in range(10 * MOST_WAITING)]
    while sum(call.done() for call in calls) < 9 * MOST_WAITING:  # noqa: ASYNC110  # each turn is progress
        await asyncio.sleep(0)
    reviews.answers.set()
    said = await asyncio.gather(*calls)
    assert reviews.most_at_once == REVIEWS_AT_ONCE
    assert said.count(HTTPStatus.TOO_MANY_REQUESTS) == 9 * MOST_WAITING
    assert await may("prometheus") is HTTPStatus.OK


async def test_what_the_api_server_does_not_say_is_not_kept() -> None:
    reviews = Reviews()
    may = access(reviews)
    reviews.is_away = True
    assert await may("prometheus") is HTTPStatus.SERVICE_UNAVAILABLE
    reviews.is_away = False
    assert await may("prometheus") is HTTPStatus.OK


async def test_a_token_longer_than_any_is_not_asked_about() -> None:
    reviews = Reviews()
    assert await access(reviews)("x" * (LONGEST_TOKEN + 1)) is HTTPStatus.UNAUTHORIZED
    assert reviews.asked == []
