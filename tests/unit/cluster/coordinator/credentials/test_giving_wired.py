"""The part of the coordinator's process that gives credentials: it is ready once it can answer, and then does."""

from __future__ import annotations

import asyncio
import base64
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry

from cedana_sched.cluster.configuration import CredentialsConfiguration
from cedana_sched.cluster.coordinator.credentials.certificate import AUTHORITIES
from cedana_sched.cluster.coordinator.credentials.endpoint import PATH
from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.cluster.coordinator.credentials.service import serving_credentials
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CONFIG_MAPS, SECRETS, Resource
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.token_review import TOKEN_REVIEWS
from cedana_sched.testing import FakeApi
from tests.servers.versitygw import free_port

NAME, OURS = "cedana-sched-credentials", "ours"


class Strangers(FakeApi):
    """Knows no token."""

    async def create(self, resource: Resource, body: Object, *, into: type[Any]) -> Any:
        assert resource is TOKEN_REVIEWS
        return msgspec.convert({"status": {"authenticated": False}}, into)


async def test_agents_are_answered_with_the_certificate_that_is_published() -> None:
    api, port = Strangers(), free_port()
    for resource in (SECRETS, CONFIG_MAPS):
        api.put(resource, {"metadata": {"name": NAME, "namespace": OURS}})
    values = {"bucket": {"bucket": "snapshots"}, "account": "agent", "name": NAME, "port": port}
    async with serving_credentials(api, CredentialsConfiguration.model_validate(values), OURS) as awaited:

        def published() -> str:
            return str(api.stored(CONFIG_MAPS, NAME, OURS).get("data", {}).get(AUTHORITIES, ""))

        async with asyncio.timeout(60):
            while awaited() is not None or not published():  # noqa: ASYNC110  # in memory, each turn is progress
                await asyncio.sleep(0)
        trusted = ssl.create_default_context(cadata=published())
        async with (
            aiohttp.ClientSession() as client,
            client.post(
                f"https://localhost:{port}{PATH}",
                data=b'{"namespace": "research"}',
                headers={"Authorization": "Bearer forged"},
                ssl=trusted,
                server_hostname=f"{NAME}.{OURS}.svc",
            ) as answer,
        ):
            assert answer.status == 401
            assert "no token" not in (await answer.json())["message"]


@pytest.mark.parametrize("apart", [-3600.0, 3600.0])
async def test_its_certificate_is_valid_by_the_api_servers_clock(monkeypatch: pytest.MonkeyPatch, apart: float) -> None:
    """A replica whose own clock is ahead makes none that agents refuse."""
    monkeypatch.setattr(SERVER_TIME, "_epoch", SERVER_TIME._epoch + apart)
    monkeypatch.setattr(
        f"{serving_credentials.__module__}.CredentialMetrics", lambda: CredentialMetrics(CollectorRegistry())
    )
    api = Strangers()
    for resource in (SECRETS, CONFIG_MAPS):
        api.put(resource, {"metadata": {"name": NAME, "namespace": OURS}})
    values = {"bucket": {"bucket": "snapshots"}, "account": "agent", "name": NAME, "port": free_port()}
    async with (
        serving_credentials(api, CredentialsConfiguration.model_validate(values), OURS) as awaited,
        asyncio.timeout(60),
    ):
        while awaited() is not None:  # noqa: ASYNC110  # in memory, each turn is progress
            await asyncio.sleep(0)
    for name in ("ca.crt", "tls.crt"):
        made = x509.load_pem_x509_certificate(base64.b64decode(api.stored(SECRETS, NAME, OURS)["data"][name]))
        begun_ago = datetime.now(tz=UTC) + timedelta(seconds=apart) - made.not_valid_before_utc
        assert timedelta(0) < begun_ago < timedelta(minutes=30)
