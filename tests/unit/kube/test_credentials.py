"""A token that the API server does not believe is read anew at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import kube_config

from cedana_sched.kube import credentials
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError, RefusedByServerError
from cedana_sched.kube.resources import PODS
from cedana_sched.model.errors import UsageError


class _Server:
    """Believes one token."""

    def __init__(self) -> None:
        self.believed = "first"
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers["Authorization"])
        if self.asked[-1] != f"Bearer {self.believed}":
            return web.json_response({"reason": "Unauthorized", "message": "Unauthorized", "code": 401}, status=401)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ca.crt").write_text("none is needed")
    path = tmp_path / "token"
    path.write_text("first")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    return path


async def test_a_token_that_is_not_believed_is_read_anew(token: Path) -> None:
    server, application = _Server(), web.Application()
    application.router.add_get("/api/v1/pods", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        configuration = Configuration()
        renew = await credentials.load_credentials(configuration, None)
        configuration.host, configuration.ssl_ca_cert = f"http://127.0.0.1:{runner.addresses[0][1]}", None
        async with ApiClient(configuration) as client:
            api = Api(client, renew)
            await api.list_all(PODS, into=PartialObject)
            server.believed = "second"
            token.write_text("second")
            await api.list_all(PODS, into=PartialObject)
            server.believed = "third"
            with pytest.raises(RefusedByServerError):
                await api.list_all(PODS, into=PartialObject)
            token.write_text("")
            with pytest.raises(ApiUnavailableError):
                await api.list_all(PODS, into=PartialObject)
    finally:
        await runner.cleanup()
    assert [one.removeprefix("Bearer ") for one in server.asked] == [
        "first", "first", "second", "second", "second", "second"
    ]  # fmt: skip


async def test_a_kubeconfig_that_nobody_has_named_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = str(tmp_path / "config")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(credentials, "KUBE_CONFIG_DEFAULT_LOCATION", absent)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", absent)
    with pytest.raises(UsageError, match=f"'{absent}' cannot be used"):
        await credentials.load_credentials(Configuration(), None)
