"""A priority by which pods preempt others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.cluster.fixtures.namespace import Namespace

_PRIORITIES: Final = "scheduling.k8s.io/v1"


@asynccontextmanager
async def urgency(namespace: Namespace) -> AsyncIterator[str]:
    """A PriorityClass above the others, called like the namespace."""
    body = {"apiVersion": _PRIORITIES, "kind": "PriorityClass", "metadata": {"name": namespace.name}, "value": 1000}
    await namespace.api.apply(body)
    try:
        yield namespace.name
    finally:
        await namespace.api.delete(_PRIORITIES, "PriorityClass", namespace.name)
