"""Port of a component for liveness, readiness and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from cedana_sched.component.bearer import bearer_token
from cedana_sched.component.http_server import serve_http

Ready = Callable[[], str | None]
"""Returns what is awaited, in words; None if ready."""
Readable = Callable[[str], Awaitable[HTTPStatus]]
"""Authorizes a bearer token, empty if there is none: OK if its owner may read the metrics."""


@asynccontextmanager
async def serve_health(
    port: int,
    ready: Mapping[str, Ready],
    registry: CollectorRegistry = REGISTRY,
    host: str | None = None,
    readable: Readable | None = None,
) -> AsyncIterator[int]:
    """Serve `/healthz`, `/readyz` and `/metrics` inside the block. Yields the port.

    Args:
        port: 0 for any free one, which requires a `host`.
        ready: `/readyz` is 503 while any of them awaits something, and names it.
        registry: shown by `/metrics`.
        host: address to listen at, None for all.
        readable: authorizes `/metrics`; None: no authorization. Probes never need any.
    """

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def is_ready(_: web.Request) -> web.Response:
        awaited = {name: what for name, check in ready.items() if (what := check()) is not None}
        text = "".join(f"{name}: {what}\n" for name, what in awaited.items()) or "ok\n"
        return web.Response(text=text, status=503 if awaited else 200)

    async def metrics(request: web.Request) -> web.Response:
        if readable is not None and (status := await readable(bearer_token(request))) is not HTTPStatus.OK:
            headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
            return web.Response(status=status, headers=headers)
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthy), web.get("/readyz", is_ready), web.get("/metrics", metrics)])
    async with serve_http(app, port, host=host) as taken:
        yield taken
