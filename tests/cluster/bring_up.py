"""A whole cluster: the control plane, nodes, DNS, and the add-ons that somebody wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.cluster import preflight
from tests.cluster.addons import catalog
from tests.cluster.armada import parts as armada
from tests.cluster.binaries.build import ensure
from tests.cluster.binaries.catalog import TOOLS
from tests.cluster.cluster import Cluster, ensure_parts
from tests.cluster.images.buildah import ensure_image
from tests.cluster.images.catalog import find_images
from tests.cluster.images.sandbox import ensure_sandbox_image
from tests.cluster.kind_config.reading import read
from tests.cluster.steps import Steps
from tests.cluster.together import together


async def bring_up(kind_config: Path, name: str, addons: Sequence[str], steps: Steps) -> Cluster:
    """Bring up a cluster with DNS, these add-ons, and the images of the tests; see `Cluster.up`.

    Raises:
        ClusterError: something is missing or failed; nothing half-started is left.
    """
    wanted = catalog.chosen(["coredns", *addons])
    preflight.check_machine(read(kind_config))
    await catalog.prepare(wanted, steps)  # what cannot be built is known before anything is started

    async def add(cluster: Cluster) -> None:
        await together(catalog.install(cluster, wanted, steps), lay_images(cluster, steps))

    return await Cluster.up(kind_config, name, steps, then=add)


async def prepare(addons: Sequence[str], steps: Steps) -> None:
    """Build all that clusters with these add-ons, and the tests on them, are made from.

    Raises:
        ClusterError: something cannot be built.
    """
    wanted = (name for name, tool in TOOLS.items() if not tool.is_on_demand)
    await ensure(*wanted, steps=steps)  # also what tests start beside a cluster
    await ensure_parts(steps)
    await catalog.prepare(catalog.chosen(["coredns", *addons]), steps)
    await armada.ensure_parts(steps)
    await ensure_sandbox_image(steps)
    for image in find_images().values():
        await ensure_image(steps, image)


async def lay_images(cluster: Cluster, steps: Steps) -> None:
    """Lay the images of the tests into all nodes, but the large ones, built anew where their inputs have changed.

    Raises:
        ClusterError: one cannot be built.
    """
    images = [image for image in find_images().values() if not (image.is_product or image.is_on_demand)]
    archives = [await ensure_image(steps, image) for image in images]
    with steps.step(f"{len(archives)} images of Containerfiles on {len(cluster.nodes)} nodes"):
        await cluster.import_images(archives)
