"""A whole cluster: the control plane, nodes, DNS, and the add-ons that somebody wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.cluster.addons.catalog import chosen, install
from tests.cluster.cluster import Cluster
from tests.cluster.steps import Steps


async def bring_up(kind_config: Path, name: str | None, addons: Sequence[str], steps: Steps) -> Cluster:
    """Bring up a cluster with DNS and these add-ons; see `Cluster.up`.

    Raises:
        ClusterError: something is missing or failed; nothing half-started is left.
    """
    wanted = chosen(["coredns", *addons])

    async def add(cluster: Cluster) -> None:
        await install(cluster, wanted, steps)

    return await Cluster.up(kind_config, name, steps, then=add)
