"""Armada's control plane beside a test cluster, and the executors of all clusters that it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from tests.cluster.armada import components, stores
from tests.cluster.armada.executor import Executor
from tests.cluster.armada.lines import Lines
from tests.cluster.armada.parts import Parts, ensure_parts
from tests.cluster.cluster import Cluster
from tests.cluster.machine import network
from tests.cluster.machine.cgroups import remove_tree
from tests.cluster.machine.machine import Machine, Specification
from tests.cluster.steps import Steps
from tests.cluster.together import together

T = TypeVar("T")

MACHINE = "armada.components"
_READY_WITHIN = 60


class Armada:
    """An Armada that is up.

    Its programs run on a machine of their own in the network namespace of a cluster's control plane. So they are found
    and ended with that cluster, also when whoever started them was killed, and several stand side by side.

    Args:
        cluster: that it lives beside, and that its first executor serves.
        parts: what it is made of.
    """

    def __init__(self, cluster: Cluster, parts: Parts) -> None:
        self.cluster = cluster
        self._parts = parts
        self.executors: dict[str, Executor] = {}
        self._ever: set[str] = set()
        place = cluster.place
        self.machine = Machine(
            name=MACHINE,
            state=place.machine_state(MACHINE),
            group=place.machine_group(MACHINE),
            logs=place.logs / MACHINE,
        )

    @classmethod
    @asynccontextmanager
    async def beside(cls, cluster: Cluster, steps: Steps) -> AsyncIterator[Armada]:
        """An Armada that serves a cluster, and is gone at the end.

        Args:
            cluster: one that is up.
            steps: told of the progress.

        Raises:
            ClusterError: something cannot be built, died, or did not become ready.
        """
        armada = cls(cluster, await ensure_parts(steps))
        try:
            with steps.step("Armada ready"):
                await armada._start()
            yield armada
        finally:
            await armada._end()

    @property
    def address(self) -> str:
        """Host and port of its gRPC server, for clients on this host."""
        return f"{self.cluster.place.address_from_host}:{components.SERVER_PORT}"

    def address_in(self, cluster: Cluster) -> str:
        """Host and port of its gRPC server, for pods of a cluster that it has."""
        return f"{cluster.place.address}:{components.SERVER_PORT}"

    @asynccontextmanager
    async def without(self, *parts: str) -> AsyncIterator[None]:
        """Let these of its programs and stores, or its `executor`, die; after the block they are started again."""
        try:
            for part in parts:
                await self._runs(part).kill_service(part)
            yield
        finally:
            for part in parts:
                await self._runs(part).start_service(part)

    def paused(self, part: str) -> AbstractAsyncContextManager[None]:
        """Let one of them stand still inside the block."""
        return self._runs(part).paused_service(part)

    def _runs(self, part: str) -> Machine:
        return self.executors[self.cluster.place.name].machine if part == "executor" else self.machine

    @asynccontextmanager
    async def having(self, other: Cluster) -> AsyncIterator[Executor]:
        """Let it have another cluster, for as long as the context lasts.

        Raises:
            ClusterError: the executor did not come up, or the scheduler does not see it.
        """
        async with AsyncExitStack() as stack:
            cable = f"armada{other.place.slot}"
            ours, theirs = self.cluster.place, other.place
            stack.push_async_callback(network.delete_cable, ours.namespace, cable)
            await network.delete_cable(ours.namespace, cable)  # of an earlier run that was killed
            await network.connect_clusters(
                cable, (ours.namespace, ours.address_from_host), (theirs.namespace, theirs.address_from_host)
            )
            executor = Executor(other, self._parts)
            await executor.prepare()
            stack.push_async_callback(self._leave, executor)
            await self._join(executor, str(ours.address_from_host))
            yield executor

    async def _start(self) -> None:
        await self._end()  # of an earlier run that was killed
        said = {name: Lines(self.machine.log(name)) for name in stores.READY}
        await self.machine.start(self._specification())

        async def ready(name: str) -> None:
            await said[name].wait_for(stores.READY[name], within=_READY_WITHIN)

        async def postgres() -> None:
            await ready("postgres")
            await self.machine.run(*stores.create_databases())
            for migration in components.migrations():
                await self.machine.run(*migration)

        executor = Executor(self.cluster, self._parts)
        await self._while_alive(
            together(postgres(), ready("redis"), ready("pulsar"), executor.prepare()), *stores.READY
        )
        for name in components.COMPONENTS:
            await self.machine.start_service(name)
        await self._while_alive(self._join(executor), *stores.READY, *components.COMPONENTS)

    def _specification(self) -> Specification:
        place = self.cluster.place
        return Specification(
            name=MACHINE,
            namespace=place.namespace,
            group=place.machine_group(MACHINE),
            state=self.machine.state,
            logs=self.machine.logs,
            lower=self._parts.root,
            binds=[*self._parts.binds(*components.COMPONENTS, "lookout"), self._parts.pulsar()],
            files={"/etc/hosts": f"127.0.0.1 localhost {MACHINE}\n", **stores.files(), **components.files()},
            services=[*stores.services(), *components.services()],
        )

    async def _while_alive(self, work: Coroutine[Any, Any, T], *services: str) -> T:
        return await self.machine.while_alive(services, work)

    async def _join(self, executor: Executor, address: str = "") -> None:
        """Start an executor, and wait until the scheduler counts on it: jobs that fit nowhere yet are refused.

        The scheduler asks the server for queues before it looks for executors: by then they all work.
        """
        self.executors[executor.cluster_id] = executor
        self._ever.add(executor.cluster_id)
        said = Lines(self.machine.log("scheduler"))
        await executor.start(address)
        seen = said.wait_for(components.executors_seen(len(self._ever)), within=_READY_WITHIN)
        await executor.while_alive(seen)

    async def _leave(self, executor: Executor) -> None:
        self.executors.pop(executor.cluster_id, None)
        await executor.end()

    async def _end(self) -> None:
        for executor in list(self.executors.values()):
            await self._leave(executor)
        await asyncio.to_thread(self.machine.kill)
        await asyncio.to_thread(remove_tree, self.machine.state)
