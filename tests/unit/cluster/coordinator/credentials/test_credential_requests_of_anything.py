"""Whatever is asked for credentials, and whatever a TokenReview says, is refused in words; the next one is answered."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import aiohttp
import structlog
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from cedana_sched.cluster.coordinator.credentials.authorization_rules import (
    Caller,
    CredentialsRefused,
    authenticate_caller,
)
from cedana_sched.cluster.coordinator.credentials.endpoint import PATH, CredentialEndpoint
from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.component.http_server import serve_http
from cedana_sched.kube import token_review
from cedana_sched.kube.errors import ApiError, decoded
from cedana_sched.kube.resources import PODS
from cedana_sched.store.credential_client import CredentialRequest
from cedana_sched.store.credential_renewal import SessionCredentials
from tests.unit.cluster.coordinator.credentials.granting_cluster import ACCOUNT, MINE, Cluster, protected
from tests.unit.store.test_any_bytes_in_the_store import VALUES, places, replaced

fuzz = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
GOOD = json.dumps({"namespace": MINE}).encode()
BODIES = (
    st.binary(max_size=40)
    | VALUES.map(lambda value: json.dumps({"namespace": value}, default=str).encode())
    | st.sampled_from(
        [b"[" * 4_000, b'{"namespace": ' + b"[" * 4_000, b'{"namespace": "\xff"}', b'{"x": 1}', b"9" * 4_000]
    )
)
TOKENS = st.sampled_from(
    ["", "Bearer", "Bearer good", "Bearer bad", "Basic good", "Bearer " + "x" * 9_000, "bearer\tgood"]
)


async def _asked(requests: list[tuple[bytes, str]]) -> list[int]:
    cluster = Cluster()
    cluster.put(PODS, protected())

    async def begin(_: CredentialRequest, __: str) -> SessionCredentials:
        return SessionCredentials("a", "b", "c", 900.0)

    application = CredentialEndpoint(cluster.evidence().authorize_node, begin, CredentialMetrics(CollectorRegistry()))
    found = []
    async with serve_http(application.web, 0, host="127.0.0.1") as port, aiohttp.ClientSession() as client:
        for body, token in (*requests, (GOOD, "Bearer good")):
            headers = {"Authorization": token}
            async with client.post(f"http://127.0.0.1:{port}{PATH}", data=body, headers=headers) as answer:
                found.append(answer.status)
    return found


@fuzz
@given(st.lists(st.tuples(BODIES, TOKENS), min_size=1, max_size=5))
@example([(b'{"namespace": ' + b"[" * 4_000, "Bearer good"), (b'{"namespace": "\xff"}', "Bearer good")])
def test_any_request(requests: list[tuple[bytes, str]]) -> None:
    with structlog.testing.capture_logs():
        *answers, last = asyncio.run(_asked(requests))
    assert last == HTTPStatus.OK
    assert all(400 <= status < 500 or status == HTTPStatus.OK for status in answers)


REVIEW = {"status": Cluster.token()}


@given(st.sampled_from(places(REVIEW)), VALUES)
@settings(deadline=None, max_examples=300)
def test_any_token_review(place: tuple[Any, ...], by: Any) -> None:
    """Only what is whole lets anybody in."""
    changed = replaced(REVIEW, place, by)
    try:
        reviewed = decoded("POST", json.dumps(changed, default=str).encode(), token_review._TokenReview).status
        caller = authenticate_caller(reviewed, ACCOUNT)
    except (ApiError, CredentialsRefused):
        return
    assert isinstance(caller, Caller)
    assert reviewed.authenticated
    assert reviewed.user.username == ACCOUNT
