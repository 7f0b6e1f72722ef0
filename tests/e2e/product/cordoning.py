"""A node that takes no pods for a while, so that who comes back must continue on another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.cluster.fixtures.namespace import Namespace


@asynccontextmanager
async def cordoned(namespace: Namespace, *nodes: str) -> AsyncIterator[None]:
    """Cordon nodes inside the block."""
    await namespace.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        await namespace.kubectl("uncordon", *nodes)
