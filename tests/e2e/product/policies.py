"""CheckpointPolicies of single tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.fixtures.namespace import Namespace

OFTEN: Final[Mapping[str, object]] = {"intervalSeconds": 2, "maxFrozenPercent": 50, "retention": {"keepLast": 2}}
"""Of pods that are saved while they run."""


@asynccontextmanager
async def own_policy(namespace: Namespace, **spec: object) -> AsyncIterator[str]:
    """A CheckpointPolicy of this test, for its pods to name; its name."""
    body = {"apiVersion": API_VERSION, "kind": "CheckpointPolicy", "metadata": {"name": namespace.name}, "spec": spec}
    await namespace.api.apply(body)
    try:
        yield namespace.name
    finally:
        await namespace.api.delete(API_VERSION, "CheckpointPolicy", namespace.name)
