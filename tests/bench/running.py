"""The cluster that a measurement runs on, and the product there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.cluster import lifetime, settings
from tests.cluster.api.client import Api
from tests.cluster.bring_up import bring_up, lay_images
from tests.cluster.cluster import Cluster
from tests.cluster.steps import Steps
from tests.e2e.product import installation, s3_server


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


@asynccontextmanager
async def running_product(steps: Steps, **values: Any) -> AsyncIterator[tuple[Cluster, Api, installation.Product]]:
    """The product with these values of the chart, and a bucket, on that cluster."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running_cluster(settings.addons(), steps))
        api = await stack.enter_async_context(cluster.api())
        await lay_images(cluster, steps)
        s3 = await stack.enter_async_context(s3_server.running(cluster, api, steps))
        product = await stack.enter_async_context(installation.installed(cluster, api, s3, steps, **values))
        yield cluster, api, product
