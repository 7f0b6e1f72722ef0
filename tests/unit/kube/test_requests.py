"""What a request costs beside itself, and what of the environment it heeds."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import PODS, SECRETS
from tests.unit.kube.moody_api_server import MoodyApiServer
from tests.unit.kube.served_api import client_of, served


class Counting(ThreadPoolExecutor):
    """What is asked of other threads."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[object] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(fn)
        return super().submit(fn, *args, **kwargs)


async def test_a_request_asks_no_other_thread() -> None:
    async with MoodyApiServer().serving() as api:
        await api.list_all(PODS, into=PartialObject)
        executor = Counting()
        asyncio.get_running_loop().set_default_executor(executor)
        for _ in range(10):
            await api.list_all(PODS, into=PartialObject)
    assert executor.asked == []


async def test_a_netrc_does_not_stand_in_for_our_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password something\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    server = MoodyApiServer()
    async with server.serving() as api:
        await api.list_all(PODS, into=PartialObject)
    assert server.tokens == [""]


@pytest.mark.parametrize("said_by", ["kubeconfig", "environment"])
async def test_a_proxy_is_gone_through(said_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(str(request.url))
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.01, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        configuration = Configuration()
        configuration.host, proxy = "http://api.example", f"http://127.0.0.1:{runner.addresses[0][1]}"
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        if said_by == "environment":
            monkeypatch.setenv("http_proxy", proxy)
        else:
            configuration.proxy = proxy
        async with ApiClient(configuration) as client:
            api = Api(client)
            await api.list_all(PODS, into=PartialObject)
    finally:
        await runner.cleanup()
    assert seen
    assert seen[0].startswith("http://api.example/api/v1/pods")


async def test_a_dry_run_of_a_creation_says_so() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.query_string)
        return web.json_response({"metadata": {"name": "x"}}, status=201)

    application = web.Application()
    application.router.add_post("/api/v1/namespaces/lab/pods", answer)
    async with client_of(application) as api:
        for create in (api.create_dry, api.create):
            assert (await create(PODS, {"metadata": {"namespace": "lab"}}, into=PartialObject)).metadata.name == "x"
    assert asked == ["fieldManager=cedana-sched&dryRun=All", "fieldManager=cedana-sched"]


async def test_metadata_alone_is_asked_for_without_what_the_object_holds() -> None:
    accepted: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        accepted.append(request.headers["Accept"])
        return web.json_response({"metadata": {"name": request.match_info["name"]}})

    async def absent(_: web.Request) -> web.Response:
        return web.json_response({"reason": "NotFound", "message": "no"}, status=404)

    path = "/api/v1/namespaces/{where}/secrets/{name}"
    async with served({path.replace("{where}", "gone"): absent, path: answer}) as api:
        found = await api.find_metadata(SECRETS, "keys", "here", into=PartialObject)
        assert await api.find_metadata(SECRETS, "keys", "gone", into=PartialObject) is None
    assert found is not None
    assert found.metadata.name == "keys"
    assert accepted == ["application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"]
