"""Which add-ons there are, and how they are laid into a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.cluster.addons.addon import Addon, archives
from tests.cluster.addons.coredns import CoreDns
from tests.cluster.addons.jobset import JobSet
from tests.cluster.addons.kueue import Kueue
from tests.cluster.addons.kwok import Kwok
from tests.cluster.addons.lws import LeaderWorkerSet
from tests.cluster.addons.mpi_operator import MpiOperator
from tests.cluster.addons.training_operator import TrainingOperator
from tests.cluster.addons.volcano import Volcano
from tests.cluster.binaries.build import Binaries, ensure
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.steps import Steps
from tests.cluster.together import together

ADDONS: dict[str, Addon] = {
    addon.name: addon
    for addon in (
        CoreDns(),
        Kwok(),
        JobSet(),
        LeaderWorkerSet(),
        MpiOperator(),
        TrainingOperator(),
        Volcano(),
        Kueue(),
    )
}

_IN_KUBE_SYSTEM = frozenset({"coredns", "kwok"})
"""Kueue's webhooks see every pod but those there: from when they are written until they answer, no other is created."""


def chosen(addons: Iterable[Addon | str]) -> list[Addon]:
    """Each of these once; names stand for what `ADDONS` has under them.

    Raises:
        ClusterError: there is none of a name.
    """
    found: dict[str, Addon] = {}
    for addon in addons:
        if isinstance(addon, str) and addon not in ADDONS:
            raise ClusterError(f"there is no add-on {addon!r}", remedy=f"name some of {', '.join(ADDONS)}")
        each = ADDONS[addon] if isinstance(addon, str) else addon
        found[each.name] = each
    return list(found.values())


async def prepare(addons: Sequence[Addon], steps: Steps) -> tuple[Binaries, list[Path]]:
    """Build what is missing of the programs and images of add-ons; needs no cluster.

    Raises:
        ClusterError: a build failed.
    """
    binaries = await ensure(*{tool: None for addon in addons for tool in addon.tools}, steps=steps)
    built = await together(*(archives(addon, binaries) for addon in addons))
    return binaries, [archive for several in built for archive in several]


async def install(cluster: Cluster, addons: Sequence[Addon | str], steps: Steps) -> None:
    """Lay add-ons into a cluster, and return when all of them work; what is there already is left alone.

    Args:
        cluster: one that is up.
        addons: names, or add-ons with settings such as `Kueue(configuration={...})`.
        steps: told of the progress.

    Raises:
        ClusterError: one does not come up.
    """
    wanted = chosen(addons)
    binaries, images = await prepare(wanted, steps)
    with steps.step(f"{len(images)} images of add-ons on {len(cluster.nodes)} nodes"):
        # the scheduler may choose any node
        await cluster.import_images(images)

    async def installed(some: list[Addon]) -> None:
        await together(*(addon.install(cluster, binaries, steps) for addon in some))

    unseen = [addon for addon in wanted if addon.name in _IN_KUBE_SYSTEM]
    kueue = [addon for addon in wanted if addon.name == "kueue"]

    async def kueue_last() -> None:
        await installed([addon for addon in wanted if addon not in (*unseen, *kueue)])
        await installed(kueue)

    await together(installed(unseen), kueue_last())
