"""A client of an API server that answers as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler
from kubernetes_asyncio.client import ApiClient, Configuration

from cedana_sched.kube.client import Api


@asynccontextmanager
async def served(answers: Mapping[str, Handler]) -> AsyncIterator[Api]:
    """GETs are answered by path, as aiohttp writes it, inside the block."""
    application = web.Application()
    for path, answer in answers.items():
        application.router.add_get(path, answer)
    async with client_of(application) as api:
        yield api


@asynccontextmanager
async def client_of(application: web.Application, connections: int | None = None) -> AsyncIterator[Api]:
    """A client of what an application answers, inside the block; `connections` at once, or as many as is usual."""
    runner = web.AppRunner(application, shutdown_timeout=0.01, access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
        configuration.connection_pool_maxsize = connections or configuration.connection_pool_maxsize
        async with ApiClient(configuration) as client:
            yield Api(client)
    finally:
        await runner.cleanup()
