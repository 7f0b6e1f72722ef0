"""Which clusters know restart rules of containers: as their API servers say."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from cedana_sched.kube.client import Api
from cedana_sched_webhooks import caches
from cedana_sched_webhooks.restart_rules_detection import has_restart_rules
from tests.pauses import shorten_pauses
from tests.unit.kube.moody_api_server import MoodyApiServer
from tests.unit.kube.served_api import served


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


@pytest.mark.parametrize(
    ("version", "knows"),
    [
        ("v1.36.2", True),
        ("v1.35.0", True),
        ("v1.35.1-gke.1002000", True),
        ("v1.35.0+k3s1", True),
        ("v2.0.0", True),
        ("v1.34.9", False),  # another API server of the cluster may be of 1.33, which refuses such pods
        ("v1.33.4-eks-99bf6dd", False),
        ("v1.4.0", False),
        ("v1.3500.0-rc", True),
        ("v1.35", True),
        ("devel", False),
        ("", False),
    ],
)
async def test_the_version_says_it(version: str, knows: bool) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "99", "gitVersion": version})

    async with served({"/version": answer}) as api:
        assert await has_restart_rules(api) is knows


@pytest.mark.parametrize("status", [401, 403])
async def test_who_may_not_ask_has_none(status: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "code": status, "reason": "Forbidden"}, status=status)

    async with served({"/version": answer}) as api:
        assert await has_restart_rules(api) is False


async def test_an_api_server_that_does_not_answer_well_is_asked_again() -> None:
    answers = iter(
        [
            web.Response(status=503),
            web.Response(body=b"<html>"),
            web.json_response({"gitVersion": "v1.36.0"}),
        ]
    )

    async def answer(_: web.Request) -> web.Response:
        return next(answers)

    async with served({"/version": answer}) as api:
        assert await has_restart_rules(api) is True


async def test_a_replica_finds_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asyncio.Event()

    async def has_rules(api: Api) -> bool:
        has = await has_restart_rules(api)
        found.set()
        return has

    monkeypatch.setattr(caches, "has_restart_rules", has_rules)
    async with MoodyApiServer().serving() as api, asyncio.TaskGroup() as tasks:
        informers = caches.CacheInformers(api)
        running = tasks.create_task(informers.run())
        await asyncio.wait_for(found.wait(), 60)
        assert informers.caches.has_restart_rules
        running.cancel()
