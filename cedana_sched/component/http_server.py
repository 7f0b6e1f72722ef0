"""HTTP server of a component."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

LONGEST_END_SECONDS: Final = 3.0
"""For requests in flight at shutdown."""
KEPT_OPEN_SECONDS: Final = 120.0
"""Longer than Go's idle timeout (90 s), so that we never close a connection that the client is about to use."""


@asynccontextmanager
async def serve_http(
    application: web.Application, port: int, context: ssl.SSLContext | None = None, *, host: str | None = None
) -> AsyncIterator[int]:
    """Serve inside the block, then until requests in flight are answered. Yields the port.

    Args:
        application: to serve.
        port: 0 for any free one, which requires a `host`.
        context: TLS context; None for plain HTTP.
        host: address to listen at, None for all.
    """
    runner = web.AppRunner(
        application, access_log=None, shutdown_timeout=LONGEST_END_SECONDS, keepalive_timeout=KEPT_OPEN_SECONDS
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=context).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
