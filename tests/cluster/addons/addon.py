"""What every add-on is: a name, the tools it is made of, images, and an installation that can be repeated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.images.archive import BinaryImage, ensure_binary_image
from tests.cluster.steps import Steps


class Addon(Protocol):
    """One add-on.

    Attributes:
        name: what ADDONS and tests call it.
        tools: of `tests.cluster.binaries.catalog`, which its images and charts come from.
    """

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> tuple[str, ...]: ...

    def images(self, binaries: Binaries) -> Sequence[BinaryImage]:
        """What its pods run."""
        ...

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        """Lay it into a cluster whose nodes have its images; returns when it works.

        What is there already is left alone; with other settings than these it is changed.

        Raises:
            ClusterError: it does not come up.
        """
        ...


async def archives(addon: Addon, binaries: Binaries) -> list[Path]:
    """The archives of an add-on's images, written first where they are missing."""
    return [await ensure_binary_image(image) for image in addon.images(binaries)]


def version_of(binaries: Binaries, tool: str) -> str:
    """The version of the module that a tool was built from, such as `v1.14.1`; charts may name an older one."""
    version: str = json.loads((binaries.folders[tool] / "complete.json").read_text())["version"]
    return version
