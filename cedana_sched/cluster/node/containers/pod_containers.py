"""Finds and kills the running containers of a pod."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cedana_sched.cluster.node.containers.bundles import Bundles, Container
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.criu_dump_options import freezer_of
from cedana_sched.snapshot import freezer


class PodContainers:
    """The running containers of one node's pods."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._bundles = Bundles(paths)

    async def kill(self, pod_uid: str) -> None:
        """End every process of a pod.

        Raises:
            FreezerError: some process did not exit in time.
        """
        await self._kill(await asyncio.to_thread(self._bundles.running_containers, pod_uid))

    async def find_container_id(self, pod_uid: str, name: str) -> str | None:
        """Return containerd's id of the running container of this name; None if none runs."""
        found = await asyncio.to_thread(self._bundles.workload_containers, pod_uid)
        return next((one.bundle.name for one in found if one.name == name), None)

    async def kill_container(self, pod_uid: str, identifier: str) -> None:
        """End every process of this container, and none of a successor with the same name.

        Raises:
            FreezerError: some process did not exit in time.
        """
        found = await asyncio.to_thread(self._bundles.workload_containers, pod_uid)
        await self._kill([one for one in found if one.bundle.name == identifier])

    async def _kill(self, containers: Iterable[Container]) -> None:
        paths = [self._paths.agent_path(freezer_of(container.state)) for container in containers]
        ends = [asyncio.to_thread(freezer.kill, place) for place in paths]
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
