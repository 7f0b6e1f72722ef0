"""One node of the cluster: how it boots, and what a test may do to it."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, TypeVar

import tenacity
import tomli_w

from tests.cluster.api.waiting import has_condition
from tests.cluster.binaries.build import Binaries
from tests.cluster.commands import run
from tests.cluster.control_plane.certificates import Authority
from tests.cluster.errors import ClusterError
from tests.cluster.kind_config.shape import ClusterShape, NodeShape
from tests.cluster.machine import network
from tests.cluster.machine.machine import Bind, Machine, Specification
from tests.cluster.machine.services import Service
from tests.cluster.nodes import configuration, pretence
from tests.cluster.place import Place

T = TypeVar("T")

_SERVICES = ("containerd", "kube-proxy", "kubelet")
_CRIU = "/opt/criu"
_CRIU_PRELOAD = "/opt/criu-preload.so"
_IMAGES = "/var/lib/images"


@dataclass(frozen=True)
class Parts:
    """What all nodes are made from.

    Args:
        root: the Debian root below every node.
        binaries: has kubelet and kube-proxy.
        criu: folder of a relocatable CRIU, with `bin/criu`.
        criu_preload: for hosts on which root may not read limits; see `cedana_sched.snapshot.rlimit_workaround`.
        images: folder of image archives.
    """

    root: Path
    binaries: Binaries
    criu: Path
    criu_preload: Path | None
    images: Path


class Node:
    """One node; its name in the cluster is its host name.

    Args:
        place: of its cluster.
        shape: of its cluster.
        node: its own shape.
        number: its place in the cluster, from 0: addresses follow from it.
    """

    def __init__(self, place: Place, shape: ClusterShape, node: NodeShape, number: int) -> None:
        self._place = place
        self._cluster_shape = shape
        self.shape = node
        self.number = number
        self.name = f"{place.name}-{node.name_suffix}"
        self.machine = Machine(
            name=self.name,
            state=place.machine_state(self.name),
            group=place.machine_group(self.name),
            logs=place.logs / self.name,
        )

    @property
    def address(self) -> IPv4Interface:
        return self._place.node_interface(self.number)

    @property
    def pod_subnet(self) -> IPv4Network:
        """The /24 that this node's pods have their addresses from."""
        return list(self._cluster_shape.pod_subnet.subnets(new_prefix=24))[self.number]

    @property
    def _namespace(self) -> str:
        return self._place.node_namespace(self.name)

    @property
    def _port(self) -> str:
        return f"node{self.number}"

    # --- its life

    async def connect(self) -> None:
        """Plug it into the cluster's switch."""
        place = self._place
        await network.create_namespace(self._namespace)
        await network.connect_machine(
            switch_namespace=place.namespace,
            bridge=place.bridge,
            port=self._port,
            machine=self._namespace,
            address=self.address,
            gateway=place.address,
        )
        await network.ip(
            "route", "replace", str(self.pod_subnet), "via", str(self.address.ip), namespace=place.namespace
        )

    def prepare(self, authority: Authority, url: str) -> None:
        """Issue what it proves itself with."""
        kubelet = authority.issue(self.name, user=f"system:node:{self.name}", groups=["system:nodes"])
        authority.kubeconfig(self._place.pki / f"{self.name}.kubeconfig", kubelet, url)
        proxy = authority.issue(f"{self.name}-kube-proxy", user="system:kube-proxy")
        authority.kubeconfig(self._place.pki / f"{self.name}-kube-proxy.kubeconfig", proxy, url)

    async def boot(self, parts: Parts) -> None:
        """Start its machine, and return when containerd answers; what it had on disk before is still there."""
        state = self.machine.state
        devices = state / "kubelet" / pretence.DEVICES
        for folder in (state / "containerd", devices.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if not devices.exists():
            devices.write_text(pretence.NO_DEVICES)
        await self.machine.start(self._specification(parts))
        await self._containerd_answers()

    async def start_kubelet(self) -> None:
        """Let it join the cluster, which must know it by now."""
        for service in ("kube-proxy", "kubelet"):
            await self.machine.start_service(service)

    def _specification(self, parts: Parts) -> Specification:
        place, state = self._place, self.machine.state
        binaries = parts.binaries
        return Specification(
            name=self.name,
            namespace=self._namespace,
            group=place.machine_group(self.name),
            state=state,
            logs=self.machine.logs,
            lower=parts.root,
            binds=[
                # an overlay cannot be the upper layer of containerd's own overlays
                Bind(state / "containerd", "/var/lib/containerd"),
                Bind(state / "kubelet", "/var/lib/kubelet"),
                Bind(place.pki / "ca.crt", f"{configuration.KUBERNETES}/ca.crt", read_only=True),
                Bind(
                    place.pki / f"{self.name}.kubeconfig",
                    f"{configuration.KUBERNETES}/kubelet.kubeconfig",
                    read_only=True,
                ),
                Bind(
                    place.pki / f"{self.name}-kube-proxy.kubeconfig",
                    f"{configuration.KUBERNETES}/kube-proxy.kubeconfig",
                    read_only=True,
                ),
                *(
                    Bind(binaries.program(name), f"/usr/local/bin/{name}", read_only=True)
                    for name in ("kubelet", "kube-proxy")
                ),
                Bind(parts.criu, _CRIU, read_only=True),
                *([Bind(parts.criu_preload, _CRIU_PRELOAD, read_only=True)] if parts.criu_preload else []),
                Bind(parts.images, _IMAGES, read_only=True),
                *(
                    Bind(mount.host_path, mount.container_path, read_only=mount.read_only)
                    for mount in self.shape.mounts
                ),
            ],
            files=self._files(parts),
            pretended=pretence.files(self.shape.capacity),
            pretended_trees=pretence.trees(self.shape.capacity),
            services=self._services(),
        )

    def _files(self, parts: Parts) -> dict[str, str]:
        shape = self._cluster_shape
        return {
            "/usr/local/bin/criu": _criu(parts),
            "/etc/hostname": f"{self.name}\n",
            "/etc/hosts": f"127.0.0.1 localhost\n{self.address.ip} {self.name}\n",
            "/etc/machine-id": f"{hashlib.md5(self.name.encode(), usedforsecurity=False).hexdigest()}\n",
            "/etc/resolv.conf": "",  # names outside the cluster are not known in it
            "/etc/containerd/config.toml": tomli_w.dumps(configuration.containerd(shape)),
            f"{configuration.CONTAINERD_DROP_INS}/README": "Runtime handlers: one file each, *.toml.\n",
            "/etc/cni/net.d/10-pods.conflist": configuration.cni(self.pod_subnet),
            f"{configuration.KUBERNETES}/kubelet.yaml": json.dumps(configuration.kubelet(shape, self.shape)),
            f"{configuration.KUBERNETES}/kube-proxy.yaml": json.dumps(configuration.kube_proxy(shape, self.name)),
        }

    def _services(self) -> list[Service]:
        kubelet = {
            "config": f"{configuration.KUBERNETES}/kubelet.yaml",
            "kubeconfig": f"{configuration.KUBERNETES}/kubelet.kubeconfig",
            "hostname-override": self.name,
            "node-ip": str(self.address.ip),
            "v": "2",
            **self.shape.kubelet_arguments,
        }
        return [
            Service("containerd", ["/usr/bin/containerd"]),
            Service(
                "kube-proxy",
                ["/usr/local/bin/kube-proxy", f"--config={configuration.KUBERNETES}/kube-proxy.yaml"],
                starts_with_machine=False,
            ),
            Service(
                "kubelet",
                ["/usr/local/bin/kubelet", *(f"--{name}={value}" for name, value in kubelet.items())],
                starts_with_machine=False,
            ),
        ]

    @tenacity.retry(
        wait=tenacity.wait_fixed(0.1),
        stop=tenacity.stop_after_delay(30),
        retry=tenacity.retry_if_exception_message(match=".*containerd does not answer.*"),
        reraise=True,
    )
    async def _containerd_answers(self) -> None:
        self.machine.check_alive(["containerd"])
        await run(
            *self.machine.entered("ctr", "--connect-timeout", "1s", "version"),
            what="containerd does not answer",
            log=self.machine.logs / "boot.log",
            remedy=f"see {self.machine.log('containerd')}",
        )

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that all its services are needed for.

        Raises:
            ClusterError: one has died.
        """
        return await self.machine.while_alive(_SERVICES, work)

    def is_ready(self, body: Mapping[str, Any]) -> bool:
        """Whether its Node object says that it is Ready since its present boot."""
        boot = body.get("status", {}).get("nodeInfo", {}).get("bootID", "")
        return boot == (self.machine.pretended(pretence.BOOT_ID) or "").strip() and has_condition("Ready")(dict(body))

    async def import_image(self, archive: Path) -> None:
        """Lay an image into containerd, unless it is there; it is unpacked when a container first needs it."""
        mark = self._images / archive.name
        if not mark.exists():
            await self.run("ctr", "-n", "k8s.io", "images", "import", "--no-unpack", f"{_IMAGES}/{archive.name}")
            mark.parent.mkdir(exist_ok=True)
            mark.touch()

    @property
    def _images(self) -> Path:
        return self.machine.state / "images"

    def images(self) -> list[str]:
        """File names of the archives that it has."""
        return sorted(mark.name for mark in self._images.iterdir())

    # --- what a test may do to it

    async def run(self, *command: str | Path, stdin: bytes | None = None) -> str:
        """Run a program on the node and return what it printed."""
        return await self.machine.run(*command, stdin=stdin)

    def listen(self, port: int) -> socket.socket:
        """A socket of this process on the node's loopback, for a server that the node's programs call."""
        return network.listen(self._namespace, port)

    def kill(self) -> None:
        """A power cut."""
        self.machine.kill()

    def pause(self) -> None:
        """Stop every process on it, its pods' included."""
        self.machine.pause()

    def resume(self) -> None:
        self.machine.resume()

    async def cut(self) -> None:
        """Unplug it from the network."""
        await network.ip("link", "set", self._port, "down", namespace=self._place.namespace)

    async def rejoin(self) -> None:
        """Plug it in again."""
        await network.ip("link", "set", self._port, "up", namespace=self._place.namespace)

    async def restart(self, service: str) -> None:
        """Restart containerd, kubelet or kube-proxy; pods go on. Returns once containerd answers, if it was that."""
        if service not in _SERVICES:
            raise ClusterError(f"{self.name} has no service {service!r}", remedy=f"name one of {', '.join(_SERVICES)}")
        await self.machine.restart_service(service)
        if service == "containerd":
            await self._containerd_answers()

    async def copy_from(self, other: Node, folder: str) -> None:
        """Take over a folder of another node, as it is there."""
        packed = await other.run("sh", "-c", f"tar --create --directory={folder} . | base64")
        await self.run("mkdir", "-p", folder)
        await self.run("tar", "--extract", f"--directory={folder}", stdin=base64.b64decode(packed))

    async def add_runtime_handler(self, name: str, program: str) -> None:
        """Let containerd know a runtime: `program` is a path on the node that takes runc's arguments."""
        base = configuration.containerd(self._cluster_shape)
        drop_in = configuration.containerd_handler(base, name, program)
        await self.run("tee", f"{configuration.CONTAINERD_DROP_INS}/{name}.toml", stdin=drop_in.encode())
        await self.restart("containerd")


def _criu(parts: Parts) -> str:
    """A script that runs the relocatable CRIU, with what this host's missing capabilities make necessary."""
    preload = f"export CEDANA_SCHED_CRIU_PRELOAD={_CRIU_PRELOAD}\n" if parts.criu_preload else ""
    return f'#!/bin/sh\n{preload}exec {_CRIU}/bin/criu "$@"\n'
