"""Brings the control plane up, and says when it answers."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import tenacity

from tests.cluster.binaries.build import Binaries
from tests.cluster.control_plane import components
from tests.cluster.control_plane.certificates import Authority, service_account_keys
from tests.cluster.errors import ClusterError
from tests.cluster.kind_config.shape import ClusterShape
from tests.cluster.machine.machine import Bind, Machine, Specification
from tests.cluster.place import Place
from tests.cluster.steps import Steps

T = TypeVar("T")

MACHINE = "control-plane.components"
_START_WITHIN = 60
_LOOPBACK = IPv4Address("127.0.0.1")
_SERVICES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


class ControlPlane:
    """The control plane of one cluster."""

    def __init__(self, place: Place, shape: ClusterShape) -> None:
        self._place = place
        self._shape = shape
        self.machine = Machine(
            name=MACHINE,
            state=place.machine_state(MACHINE),
            group=place.machine_group(MACHINE),
            logs=place.logs / MACHINE,
        )

    @property
    def audit_log(self) -> Path:
        return self.machine.logs / components.AUDIT_LOG

    def authority(self) -> Authority:
        """Signs the certificates of every part of the cluster."""
        return Authority(self._place.pki, "ca")

    @property
    def url(self) -> str:
        """The API server, for nodes and pods."""
        return f"https://{self._place.address}:{components.api_server_port(self._shape)}"

    def prepare(self) -> None:
        """Issue all certificates, and the administrator's kubeconfig."""
        place, authority = self._place, self.authority()
        port = components.api_server_port(self._shape)
        authority.issue(
            "apiserver",
            user="kube-apiserver",
            addresses=[_LOOPBACK, place.address, place.address_from_host, self._shape.service_subnet[1]],
            names=[
                "localhost",
                *(f"kubernetes{suffix}" for suffix in ("", ".default", ".default.svc", ".default.svc.cluster.local")),
            ],
        )
        authority.issue("apiserver-kubelet-client", user="kube-apiserver-kubelet-client", groups=["system:masters"])
        Authority(place.pki, "front-proxy-ca").issue("front-proxy-client", user="front-proxy-client")
        service_account_keys(place.pki)
        administrator = authority.issue("admin", user="kubernetes-admin", groups=["system:masters"])
        authority.kubeconfig(place.kubeconfig, administrator, f"https://{place.address_from_host}:{port}")
        for component, user in (
            ("controller-manager", "system:kube-controller-manager"),
            ("scheduler", "system:kube-scheduler"),
        ):
            pair = authority.issue(component, user=user)
            authority.kubeconfig(place.pki / f"{component}.kubeconfig", pair, f"https://127.0.0.1:{port}")

    async def start(self, lower: Path, binaries: Binaries, steps: Steps) -> None:
        """Boot its machine; returns when every component is ready.

        Raises:
            ClusterError: a component died, or was not ready within a minute.
        """
        place = self._place
        kubeconfigs = ("controller-manager.kubeconfig", "scheduler.kubeconfig")
        await self.machine.start(
            Specification(
                name=MACHINE,
                namespace=place.namespace,
                group=place.machine_group(MACHINE),
                state=self.machine.state,
                logs=self.machine.logs,
                lower=lower,
                binds=[
                    Bind(place.pki, components.PKI, read_only=True),
                    *(
                        Bind(place.pki / name, f"{components.CONFIGURATION}/{name}", read_only=True)
                        for name in kubeconfigs
                    ),
                    *(Bind(binaries.program(name), f"/usr/local/bin/{name}", read_only=True) for name in _SERVICES),
                ],
                files=components.files(),
                services=components.services(place, self._shape),
            )
        )
        with steps.step("API server ready"):
            await self._ready(components.api_server_port(self._shape), ["etcd", "kube-apiserver"])
        for name in ("kube-controller-manager", "kube-scheduler"):
            await self.machine.start_service(name)

    async def _ready(self, port: int, services: list[str]) -> None:
        url = f"https://{self._place.address_from_host}:{port}/readyz"
        context = ssl.create_default_context(cafile=str(self._place.pki / "ca.crt"))
        context.load_cert_chain(self._place.pki / "admin.crt", self._place.pki / "admin.key")
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=context)) as session:
            async for attempt in tenacity.AsyncRetrying(
                wait=tenacity.wait_fixed(0.1),
                stop=tenacity.stop_after_delay(_START_WITHIN),
                retry=tenacity.retry_if_exception_type((aiohttp.ClientError, TimeoutError, _NotReadyError)),
                retry_error_callback=self._too_late,
            ):
                with attempt:
                    self.machine.check_alive(services)
                    async with session.get(url) as answer:
                        if answer.status != 200:
                            raise _NotReadyError(await answer.text())

    def _too_late(self, _: tenacity.RetryCallState) -> None:
        raise ClusterError(
            f"the API server is not ready after {_START_WITHIN} s",
            log=self.machine.log("kube-apiserver"),
            remedy="see its log, and whether the machine is overloaded",
        )

    async def restart(self, service: str) -> None:
        """Have one of its programs die and begin again; returns when the API server is ready again.

        Raises:
            ClusterError: it is not ready within a minute.
        """
        async with self.without(service):
            """It is gone for as long as a start takes."""

    @asynccontextmanager
    async def without(self, service: str) -> AsyncIterator[None]:
        """Have one of its programs die, and do without it inside the block; at the end the API server is ready again.

        It is killed: an API server that is asked to end waits for its watches, which is longer than anybody else does.

        Raises:
            ClusterError: see `restart`.
        """
        await self.machine.kill_service(service)
        try:
            yield
        finally:
            await self.machine.start_service(service)
            await self._ready(components.api_server_port(self._shape), [])

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that all components are needed for.

        Raises:
            ClusterError: one has died.
        """
        return await self.machine.while_alive(_SERVICES, work)


class _NotReadyError(Exception):
    pass
