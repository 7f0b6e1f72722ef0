"""One cluster: brought up, found again by another process, changed, taken down."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from cedana_sched.snapshot.criu_toolchain import ensure_toolchain
from tests.cluster import lifetime, preflight
from tests.cluster.api.client import Api
from tests.cluster.api.waiting import WaitedInVainError, wait_for
from tests.cluster.binaries.build import Binaries, ensure
from tests.cluster.cache import cache_dir
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.debian import node_root
from tests.cluster.errors import ClusterError
from tests.cluster.images.sandbox import ensure_sandbox_image
from tests.cluster.kind_config.reading import read
from tests.cluster.kind_config.shape import ClusterShape, NodeShape
from tests.cluster.machine import network
from tests.cluster.nodes.node import Node, Parts
from tests.cluster.nodes.registration import register, why_not_ready
from tests.cluster.place import Place
from tests.cluster.steps import Steps
from tests.cluster.together import together

_READY_WITHIN = 60
_KIND_CONFIG = "kind-config.yaml"


class Cluster:
    """A cluster that is up.

    Args:
        place: its names and addresses.
        shape: what it was made after.
        parts: what its nodes are made from.
    """

    def __init__(self, place: Place, shape: ClusterShape, parts: Parts) -> None:
        self.place = place
        self.shape = shape
        self._parts = parts
        self.control_plane = ControlPlane(place, shape)
        self.nodes: dict[str, Node] = {}
        for node in shape.nodes:
            self._add(node)

    def _add(self, shape: NodeShape) -> Node:
        node = Node(self.place, self.shape, shape, len(self.nodes))
        self.nodes[node.name] = node
        return node

    @property
    def kubeconfig(self) -> Path:
        return self.place.kubeconfig

    @property
    def binaries(self) -> Binaries:
        """The programs that it runs."""
        return self._parts.binaries

    # --- up

    @classmethod
    async def up(
        cls,
        kind_config: Path,
        name: str,
        steps: Steps,
        then: Callable[[Cluster], Awaitable[None]] | None = None,
    ) -> Cluster:
        """Bring a cluster up until all its nodes are Ready; what a crashed run left under its name is removed first.

        Args:
            kind_config: a file of kind's format.
            name: of the cluster.
            steps: told of the progress.
            then: what is done before the cluster counts as up, such as installing add-ons.

        Raises:
            ClusterError: something is missing or failed; nothing half-started is left.
        """
        shape = read(kind_config)
        with lifetime.alone(name):
            preflight.check_machine(shape)
            place = await lifetime.claim(name)
            try:
                preflight.check_networks(place, shape)
                cluster = cls(place, shape, await ensure_parts(steps))
                shutil.copy(kind_config, place.root / _KIND_CONFIG)
                await cluster._start(steps)
                if then is not None:
                    await then(cluster)
                cluster._save()
            except BaseException:
                await lifetime.remove(place, keep_logs=True)
                raise
        return cluster

    async def _start(self, steps: Steps) -> None:
        place = self.place
        await network.create_namespace(place.namespace)
        await network.create_bridge(place.namespace, place.bridge, place.bridge_interface)
        await network.connect_host(place.namespace, place.interface, place.link)
        self.control_plane.prepare()
        self._link_programs()
        sandbox = await ensure_sandbox_image(steps)
        await together(
            self.control_plane.start(self._parts.root, self._parts.binaries, steps),
            *(self._boot(node, [sandbox]) for node in self.nodes.values()),
        )
        with steps.step(f"{len(self.nodes)} nodes Ready"):
            async with self.api() as api:
                joined = together(self._controllers_run(api), *(self._join(api, node) for node in self.nodes.values()))
                await self.control_plane.while_alive(joined)

    async def _boot(self, node: Node, images: Sequence[Path]) -> None:
        node.prepare(self.control_plane.authority(), self.control_plane.url)
        await node.connect()
        await node.boot(self._parts)
        for image in images:
            await node.import_image(image)

    async def _controllers_run(self, api: Api) -> None:
        """Wait for what the controllers make first; without it no pod is admitted."""
        try:
            await wait_for(api, "v1", "ServiceAccount", "default", lambda _: True, namespace="default", within=30)
        except WaitedInVainError as error:
            raise ClusterError(
                "the controllers made no ServiceAccount within 30 s",
                log=self.control_plane.machine.log("kube-controller-manager"),
                remedy="see its log, and whether the machine is overloaded",
            ) from error

    async def _join(self, api: Api, node: Node) -> None:
        await register(api, node)
        await node.start_kubelet()
        try:
            await node.while_alive(wait_for(api, "v1", "Node", node.name, node.is_ready, within=_READY_WITHIN))
        except WaitedInVainError as error:
            said = why_not_ready(await api.get("v1", "Node", node.name))
            raise ClusterError(
                f"{node.name} is not Ready after {_READY_WITHIN} s: {said}",
                log=node.machine.log("kubelet"),
                remedy="see its log, and whether the machine is overloaded",
            ) from error

    def _link_programs(self) -> None:
        folder = self.place.root / "bin"
        folder.mkdir(exist_ok=True)
        link = folder / "kubectl"
        link.unlink(missing_ok=True)
        link.symlink_to(self.binaries.program("kubectl"))

    def _save(self) -> None:
        state = {"added": list(self.nodes)[len(self.shape.nodes) :]}
        lifetime.mark_up(self.place, json.dumps(state))

    # --- found again

    @classmethod
    async def attach(cls, name: str, steps: Steps) -> Cluster:
        """A cluster that is up already.

        Raises:
            ClusterError: there is none of this name.
        """
        place = lifetime.place_of_running(name)
        saved = json.loads((place.root / lifetime.STATE).read_text())
        cluster = cls(place, read(place.root / _KIND_CONFIG), await ensure_parts(steps))
        for added in saved["added"]:
            suffix = added.removeprefix(f"{name}-")
            cluster._add(replace(cluster._template(), name_suffix=suffix))
        return cluster

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        """A client with the administrator's rights."""
        async with Api.open(self.kubeconfig) as api:
            yield api

    # --- changed

    def _template(self) -> NodeShape:
        """The shape of a further node: the last one's of the kind config, with no taints."""
        return replace(self.shape.nodes[-1], taints=(), role="worker")

    async def add_node(self) -> Node:
        """One more node like the last one, Ready, with the images that the first one has."""
        first, *others = self.nodes.values()
        number = str(len(others) + 1) if others else ""  # worker, worker2, ..., as kind names them
        node = self._add(replace(self._template(), name_suffix=f"worker{number}"))
        await self._boot(node, [self._parts.images / name for name in first.images()])
        async with self.api() as api:
            await self._join(api, node)
        self._save()
        return node

    async def start_node(self, node: Node) -> None:
        """Switch a killed node on again and wait until it is Ready."""
        await node.boot(self._parts)
        async with self.api() as api:
            await self._join(api, node)

    async def import_images(self, archives: Sequence[Path]) -> None:
        """Lay images into every node."""
        await together(*(node.import_image(archive) for node in self.nodes.values() for archive in archives))


async def ensure_parts(steps: Steps) -> Parts:
    """Whatever all machines are made from, built where it is missing."""
    toolchain, binaries, root = await together(
        asyncio.to_thread(ensure_toolchain, None, steps.say),
        ensure("kubernetes", "etcd", steps=steps),
        node_root(steps),
    )
    return Parts(root, binaries, toolchain.criu.parents[1], toolchain.preload, cache_dir() / "images")
