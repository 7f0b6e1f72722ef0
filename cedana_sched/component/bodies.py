"""Request bodies with limits of size and time."""

from __future__ import annotations

import asyncio

from aiohttp import web


async def read_body(received: web.Request, longest_bytes: int, seconds: float) -> bytearray:
    """Read the body like aiohttp, but without keeping it for the lifetime of the request.

    Raises:
        web.HTTPRequestEntityTooLarge: it exceeds the limit; if Content-Length already does, nothing is read.
        web.HTTPRequestTimeout: it is incomplete after `seconds`.
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
