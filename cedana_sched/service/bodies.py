"""The body of a request, as far as anybody means it and no longer than its sender is waited for."""

from __future__ import annotations

import asyncio

from aiohttp import web


async def read_body(received: web.Request, longest_bytes: int, seconds: float) -> bytearray:
    """As aiohttp reads it, but that it does not keep it as long as the request.

    Raises:
        web.HTTPRequestEntityTooLarge: it is longer; where its sender says so before, nothing of it is read.
        web.HTTPRequestTimeout: it is not there after so many seconds.
    """
    if (received.content_length or 0) > longest_bytes:
        raise web.HTTPRequestEntityTooLarge(longest_bytes, received.content_length or 0)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in received.content.iter_any():
                body += chunk
                if len(body) > longest_bytes:
                    raise web.HTTPRequestEntityTooLarge(longest_bytes, len(body))
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    return body
