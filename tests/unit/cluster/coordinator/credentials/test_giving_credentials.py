"""An agent's client and the coordinator's application, over the TLS that both have in a cluster."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from cedana_sched.cluster.coordinator.credentials.authorization_rules import CredentialsRefused
from cedana_sched.cluster.coordinator.credentials.endpoint import LONGEST_REQUEST_BYTES, PATH, CredentialEndpoint
from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.component.http_server import serve_http
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.store.credential_client import CredentialClient, CredentialRequest
from cedana_sched.store.credential_renewal import CredentialsRefusedError, SessionCredentials
from cedana_sched.store.storage_config import CredentialService
from cedana_sched.store.sts import NoSessionsError
from cedana_sched_webhooks.certificates import IssuedCertificates, plan_next_step
from cedana_sched_webhooks.tls import ServingCertificate

MINE = "research.7c9e6679-7425-40de-944b-e07fc1f90ae7"


def issued() -> IssuedCertificates:
    made = plan_next_step(None, ("localhost",), trusted=False, now=dt.datetime.now(tz=dt.UTC)).issued
    assert made is not None
    return made


class Coordinator:
    """Answers `the-token` for `MINE`, unless something stands in the way."""

    def __init__(self, folder: Path) -> None:
        self.problem: Exception | None = None
        self.begun: list[tuple[CredentialRequest, str]] = []
        self.token_file = folder / "token"
        self.token_file.write_text("the-token\n")
        self.authorities = folder / "ca.crt"
        self.registry = CollectorRegistry()
        self.url = ""

    async def decide(self, token: str, wanted: CredentialRequest) -> str:
        if isinstance(self.problem, CredentialsRefused | ApiUnavailableError):
            raise self.problem
        if token != "the-token":  # noqa: S105
            raise CredentialsRefused(HTTPStatus.UNAUTHORIZED, "the token is none")
        if wanted.namespace != MINE:
            raise CredentialsRefused(HTTPStatus.FORBIDDEN, "no business there")
        return "node-1"

    async def begin(self, wanted: CredentialRequest, node: str) -> SessionCredentials:
        if self.problem is not None:
            raise self.problem
        self.begun.append((wanted, node))
        return SessionCredentials("key", "secret", "session", 900.0)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        metrics = CredentialMetrics(self.registry)
        certificate, made = ServingCertificate(metrics), issued()
        certificate.load(made.certificate, made.key)
        self.authorities.write_bytes(made.authorities)
        application = CredentialEndpoint(self.decide, self.begin, metrics)
        async with serve_http(application.web, 0, certificate.context, host="127.0.0.1") as port:
            self.url = f"https://localhost:{port}{PATH}"
            yield

    async def fetch(self, namespace: str = MINE, *, collecting: bool = False) -> SessionCredentials:
        service = CredentialService(url=self.url, token_file=self.token_file, authorities=self.authorities)
        return await asyncio.to_thread(CredentialClient(service, collecting=collecting).fetch, namespace)

    def answered(self, status: int) -> float:
        return self.registry.get_sample_value("cedana_sched_credentials_requests_total", {"status": str(status)}) or 0.0


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path)


async def test_an_agent_gets_what_the_store_gave(coordinator: Coordinator) -> None:
    async with coordinator.serving():
        assert await coordinator.fetch() == SessionCredentials("key", "secret", "session", 900.0)
    assert coordinator.begun == [(CredentialRequest(MINE), "node-1")]
    assert coordinator.answered(200) == 1


def test_a_coordinator_that_knows_no_turns_understands_who_collects_nothing() -> None:
    assert msgspec.json.encode(CredentialRequest("research")) == b'{"namespace":"research"}'


async def test_who_only_collects_says_so(coordinator: Coordinator) -> None:
    async with coordinator.serving():
        await coordinator.fetch(collecting=True)
    assert coordinator.begun == [(CredentialRequest(MINE, collecting=True), "node-1")]


async def test_a_namespace_that_is_refused_is_tried_again_as_a_store_that_is_away(coordinator: Coordinator) -> None:
    async with coordinator.serving():
        with pytest.raises(CredentialsRefusedError, match="no business there") as refused:
            await coordinator.fetch("finance")
    assert isinstance(refused.value, StoreUnavailableError)
    assert not coordinator.begun
    assert coordinator.answered(403) == 1


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (CredentialsRefused(HTTPStatus.UNAUTHORIZED, "the token has expired"), 401),
        (CredentialsRefused(HTTPStatus.TOO_MANY_REQUESTS, "too many"), 429),
        (ApiUnavailableError("nobody says who it is"), 503),
        (StoreUnavailableError("STS is away"), 503),
        (NoSessionsError("no STS"), 502),
    ],
)
async def test_what_keeps_an_agent_waiting(coordinator: Coordinator, problem: Exception, status: int) -> None:
    coordinator.problem = problem
    async with coordinator.serving():
        with pytest.raises(StoreUnavailableError) as told:
            await coordinator.fetch()
    assert not isinstance(told.value, CredentialsRefusedError)
    assert coordinator.answered(status) == 1


async def test_what_the_store_says_to_us_is_not_passed_on(coordinator: Coordinator) -> None:
    coordinator.problem = NoSessionsError("403 our-own-key is not authorized")
    async with coordinator.serving():
        with pytest.raises(StoreUnavailableError) as told:
            await coordinator.fetch()
    assert "our-own-key" not in str(told.value)


async def test_a_stranger_s_certificate_gets_no_token(coordinator: Coordinator) -> None:
    async with coordinator.serving():
        coordinator.authorities.write_bytes(issued().authorities)
        with pytest.raises(StoreUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            await coordinator.fetch()
    assert not coordinator.begun


async def test_a_coordinator_that_does_not_run(coordinator: Coordinator) -> None:
    async with coordinator.serving():
        pass
    with pytest.raises(StoreUnavailableError, match="see whether the coordinator runs"):
        await coordinator.fetch()


@pytest.mark.parametrize("missing", ["token", "authorities"])
async def test_what_the_kubelet_has_not_laid_there_yet(coordinator: Coordinator, missing: str) -> None:
    async with coordinator.serving():
        file = coordinator.token_file if missing == "token" else coordinator.authorities
        before = file.read_bytes()
        file.write_bytes(b"")
        with pytest.raises(StoreUnavailableError, match="is empty"):
            await coordinator.fetch()
        file.unlink()
        with pytest.raises(StoreUnavailableError, match="cannot be read"):
            await coordinator.fetch()
        file.write_bytes(before)
        assert (await coordinator.fetch()).access_key == "key"


async def test_a_token_that_was_renewed_is_the_one_that_is_shown(coordinator: Coordinator) -> None:
    async with coordinator.serving():
        coordinator.token_file.write_text("expired")
        with pytest.raises(StoreUnavailableError, match="401"):
            await coordinator.fetch()
        coordinator.token_file.write_text("the-token")
        assert (await coordinator.fetch()).access_key == "key"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"namespace": 1}', 400),
        (b'{"namespace": "x", "prefix": "*"}', 400),
        (json.dumps({"namespace": "x" * LONGEST_REQUEST_BYTES}).encode(), 413),
    ],
)
async def test_what_is_no_request(coordinator: Coordinator, body: bytes, status: int) -> None:
    async with coordinator.serving(), aiohttp.ClientSession() as client:
        trusted = ssl.create_default_context(cafile=str(coordinator.authorities))
        trusted.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
        headers = {"Authorization": "Bearer the-token"}
        async with client.post(coordinator.url, data=body, headers=headers, ssl=trusted) as answer:
            assert answer.status == status
    assert not coordinator.begun


async def test_a_refusal_is_logged_once_a_minute_and_no_secret_ever(coordinator: Coordinator) -> None:
    with capture_logs() as logs:
        async with coordinator.serving():
            for _ in range(3):
                with pytest.raises(CredentialsRefusedError):
                    await coordinator.fetch("finance")
            await coordinator.fetch()
    assert [one["event"] for one in logs] == ["credentials refused", "credentials given"]
    text = json.dumps(logs)
    assert not any(secret in text for secret in ("the-token", '"secret"', "session"))
