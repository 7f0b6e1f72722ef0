"""Bearer token of a request."""

from __future__ import annotations

from aiohttp import web


def bearer_token(request: web.Request) -> str:
    """Return the token; empty if there is none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
