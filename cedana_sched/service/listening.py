"""The server of a component, for as long as it is to be reached."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

LONGEST_END_SECONDS: Final = 3.0
"""For requests that are under way when we end."""
KEPT_OPEN_SECONDS: Final = 120.0
"""Longer than Go keeps a connection that is idle (90 s): it is never we who close one that it is about to use."""


@asynccontextmanager
async def listening(
    application: web.Application, port: int, context: ssl.SSLContext | None = None, *, host: str | None = None
) -> AsyncIterator[int]:
    """Serve while the block lasts, then until requests under way have been answered. Gives the port.

    Args:
        application: what is served.
        port: 0 takes any free one, for which a `host` must be given.
        context: the certificate; without one it is plain HTTP.
        host: the address to listen at, None for all.
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
