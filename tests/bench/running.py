"""The cluster that a measurement runs on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.cluster import lifetime, settings
from tests.cluster.bring_up import bring_up
from tests.cluster.cluster import Cluster
from tests.cluster.steps import Steps


@asynccontextmanager
async def running_cluster(addons: Sequence[str], steps: Steps) -> AsyncIterator[Cluster]:
    """That of CLUSTER_NAME if it is up, else a new one after KIND_CONFIG, taken down at the end without KEEP."""
    name = settings.cluster_name()
    if lifetime.is_up(name):
        yield await Cluster.attach(name, steps)
        return
    cluster = await bring_up(settings.kind_config(), name, addons, steps)
    try:
        yield cluster
    finally:
        if not settings.is_kept():
            with steps.step("Cluster down"):
                await lifetime.take_down(name)
