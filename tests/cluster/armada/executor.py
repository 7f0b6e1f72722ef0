"""Armada's executor in one cluster: it gets leases from the scheduler, and makes pods of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tests.cluster.armada import components, rights
from tests.cluster.armada.parts import Parts
from tests.cluster.cluster import Cluster
from tests.cluster.machine.cgroups import remove_tree
from tests.cluster.machine.machine import Bind, Machine, Specification
from tests.cluster.machine.services import Service

T = TypeVar("T")

MACHINE = "armada-executor.components"
_KUBECONFIG = "/etc/kubernetes/armada-executor.kubeconfig"


class Executor:
    """The executor of one cluster, on a machine of its own in the control plane's network namespace.

    Armada takes every pod with its labels for one of the executor that sees it, so a cluster has one executor.

    Args:
        cluster: that it makes pods in.
        parts: what it is made of.
    """

    def __init__(self, cluster: Cluster, parts: Parts) -> None:
        self.cluster = cluster
        self._parts = parts
        place = cluster.place
        self.machine = Machine(
            name=MACHINE,
            state=place.machine_state(MACHINE),
            group=place.machine_group(MACHINE),
            logs=place.logs / MACHINE,
        )

    @property
    def cluster_id(self) -> str:
        """What Armada calls the cluster."""
        return self.cluster.place.name

    async def prepare(self) -> None:
        """Give it its rights, a token, and what it runs under; one that an earlier run left is ended first."""
        await self.end()
        async with self.cluster.api() as api:
            await rights.grant(api, self._parts.binaries)
            await rights.write_kubeconfig(self.cluster, api, self._kubeconfig)

    async def start(self, armada: str = "") -> None:
        """Start it.

        Args:
            armada: the address of an Armada that lives beside another cluster. Pods of this one then find its server
                where they would find one of their own.

        Raises:
            ClusterError: its machine did not boot.
        """
        place = self.cluster.place
        configuration = components.executor_configuration(self.cluster_id, armada or "localhost")
        await self.machine.start(
            Specification(
                name=MACHINE,
                namespace=place.namespace,
                group=place.machine_group(MACHINE),
                state=self.machine.state,
                logs=self.machine.logs,
                lower=self._parts.root,
                binds=[*self._parts.binds("executor"), Bind(self._kubeconfig, _KUBECONFIG, read_only=True)],
                files={
                    "/etc/hosts": f"127.0.0.1 localhost {MACHINE}\n",
                    **components.files({"executor": configuration}),
                },
                services=self._services(armada),
            )
        )

    @property
    def _kubeconfig(self) -> Path:
        return self.machine.state / "kubeconfig"

    def _services(self, armada: str) -> list[Service]:
        executor = Service("executor", components.command("executor"), {"KUBECONFIG": _KUBECONFIG})
        if not armada:
            return [executor]
        port = components.SERVER_PORT
        listen = f"TCP-LISTEN:{port},bind={self.cluster.place.address},fork,reuseaddr"
        return [executor, Service("armada-server", ["socat", listen, f"TCP:{armada}:{port}"])]

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that it is needed for.

        Raises:
            ClusterError: it has died.
        """
        return await self.machine.while_alive(["executor"], work)

    async def end(self) -> None:
        """Cut its power and forget what it had on disk; its log and its pods stay."""
        await asyncio.to_thread(self.machine.kill)
        await asyncio.to_thread(remove_tree, self.machine.state)
