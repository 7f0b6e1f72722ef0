"""The token by which whoever sends a request proves who he is."""

from __future__ import annotations

from aiohttp import web


def bearer_token(request: web.Request) -> str:
    """Empty where none is shown."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
