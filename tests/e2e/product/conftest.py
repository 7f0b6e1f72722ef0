"""What tests of the installed product use: an S3 server and the release."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from tests.cluster.addons.catalog import install
from tests.cluster.addons.kueue import Kueue
from tests.cluster.addons.volcano import Volcano
from tests.cluster.api.client import Api
from tests.cluster.armada.armada import Armada
from tests.cluster.cluster import Cluster
from tests.cluster.images.buildah import ensure_image
from tests.cluster.images.catalog import find_images
from tests.cluster.patience import patient
from tests.cluster.steps import Steps
from tests.e2e.product import installation, s3_server, sts_server
from tests.e2e.product.armada_jobs import product_beside
from tests.e2e.product.installation import Product
from tests.e2e.product.rendering import NAMESPACE
from tests.e2e.product.s3_server import S3Server
from tests.e2e.product.volcano_extender import with_extender
from tests.e2e.product.volcano_queues import RECLAIMS

PYTORCH_JOBS: Final = ("batch/job", "kubeflow.org/pytorchjob")
"""What Kueue is told to suspend for a test of PyTorchJobs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever wants the product first may have to wait for its images to be built."""
    for item in items:
        if "release" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(patient(900)))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def s3(cluster: Cluster, api: Api, steps: Steps) -> AsyncIterator[S3Server]:
    """An S3 server with an empty bucket, reachable from pods and from their nodes."""
    async with s3_server.running(cluster, api, steps) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sts(cluster: Cluster, api: Api, steps: Steps) -> AsyncIterator[S3Server]:
    """An S3 server with STS, and an empty bucket."""
    async with sts_server.running(cluster, api, steps) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def release(cluster: Cluster, api: Api, s3: S3Server, steps: Steps) -> AsyncIterator[Product]:
    """The product, which the first that wants it installs."""
    async with installation.prepared(cluster, api, s3, steps) as product:
        yield product


@pytest_asyncio.fixture(loop_scope="session")
async def installed(release: Product) -> Product:
    """The product, with the adapters of whoever has installed it; without any, if that is the first test."""
    await release.ensure_any()
    return release


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def jobset_beside_kueue(jobset: None, kueue: None) -> None:
    """JobSet, whose objects Kueue suspends."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def mpi_operator_beside_kueue(mpi_operator: None, kueue: None) -> None:
    """The MPI operator, whose objects Kueue suspends."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lws_beside_kueue(lws: None, kueue: None) -> None:
    """LeaderWorkerSet, whose pods Kueue stops by their groups."""


@pytest_asyncio.fixture(loop_scope="session")
async def pytorch_jobs_beside_kueue(
    training_operator: None, kueue: None, cluster: Cluster, steps: Steps
) -> AsyncIterator[None]:
    """The training operator, whose PyTorchJobs Kueue suspends during one test: without being told, it does not."""
    await install(cluster, [Kueue(configuration={"integrations": {"frameworks": PYTORCH_JOBS}})], steps)
    yield
    await install(cluster, [Kueue()], steps)


@pytest_asyncio.fixture(loop_scope="session")
async def installed_with_kueue(kueue: None, release: Product) -> Product:
    """The product beside Kueue, with our AdmissionCheck for ClusterQueues to name."""
    await release.ensure(kueue={"enabled": True})
    return release


@pytest_asyncio.fixture(loop_scope="session")
async def installed_with_scoped_credentials(kueue: None, release: Product, api: Api, sts: S3Server) -> Product:
    """The product beside Kueue; no agent has a key of the bucket."""
    await api.apply(sts.secret(sts_server.KEYS, NAMESPACE))
    await release.ensure(kueue={"enabled": True}, storage={"s3": sts_server.scoped(sts)})
    return release


@pytest_asyncio.fixture(loop_scope="session")
async def installed_with_armada(armada: Armada, cluster: Cluster, release: Product) -> Product:
    """The product beside Armada."""
    await release.ensure(armada=product_beside(armada, cluster))
    return release


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def volcano_that_reclaims(cluster: Cluster, steps: Steps) -> None:
    """Volcano with the actions that preempt."""
    await install(cluster, [Volcano(RECLAIMS)], steps)


@pytest_asyncio.fixture(loop_scope="session")
async def installed_with_volcano(volcano_that_reclaims: None, release: Product) -> Product:
    """The product beside Volcano."""
    await release.ensure(volcano={"enabled": True})
    return release


@pytest_asyncio.fixture(loop_scope="session")
async def installed_with_extender(volcano: None, release: Product, steps: Steps) -> Product:
    """The product with Volcano's extender, and Volcano with the configuration that the release's notes ask for."""
    await with_extender(release, steps)
    return release


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def programs(cluster: Cluster, steps: Steps) -> AsyncIterator[str]:
    """Name of an image that runs one of `workloads/`, on every node."""
    image = find_images()["workloads"]
    archive = await ensure_image(steps, image)
    with steps.step(f"image {image.tag} on {len(cluster.nodes)} nodes"):
        await cluster.import_images([archive])
    yield image.tag
