"""A node that takes no pods for a while, so that who comes back must continue on another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.owners import LABEL, NAME


@asynccontextmanager
async def cordoned(namespace: Namespace, *nodes: str) -> AsyncIterator[None]:
    """Cordon nodes inside the block."""
    await namespace.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        await namespace.kubectl("uncordon", *nodes)


@asynccontextmanager
async def drained(namespace: Namespace, node: str, *, within: int = 120) -> AsyncIterator[None]:
    """`kubectl drain`, for the pods of the test."""
    selector = f"--pod-selector={LABEL}={NAME}"
    try:
        await namespace.kubectl(
            "drain", node, selector, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={within}s"
        )
        yield
    finally:
        await namespace.kubectl("uncordon", node)
