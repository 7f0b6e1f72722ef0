"""Named network namespaces, and the cables between them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from tests.cluster.commands import run
from tests.cluster.errors import ClusterError

NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_KINDS_OF_ROUTES = {"local", "broadcast", "anycast", "unreachable", "blackhole", "prohibit", "throw"}
_REMEDY = "see whether this kernel has veth, bridge and network namespaces, and whether this is root"


async def ip(*arguments: str, namespace: str | None = None) -> str:
    """Run iproute2's `ip`, inside a namespace when one is named."""
    inside = ("-netns", namespace) if namespace else ()
    return await run("ip", *inside, *arguments, what=f"ip {' '.join(arguments)} failed", remedy=_REMEDY)


async def create_namespace(name: str) -> None:
    """A namespace with nothing but loopback, and with forwarding on."""
    await ip("netns", "add", name)
    await ip("link", "set", "lo", "up", namespace=name)
    await inside(name, "sysctl", "-qw", "net.ipv4.ip_forward=1")


async def delete_namespace(name: str) -> None:
    """Remove a namespace and its interfaces; nothing when it is absent."""
    if (NAMESPACES / name).exists():
        await ip("netns", "delete", name)


def namespaces(prefix: str) -> list[str]:
    """The named namespaces that begin so."""
    return sorted(path.name for path in NAMESPACES.iterdir() if path.name.startswith(prefix)) if _any() else []


def _any() -> bool:
    return NAMESPACES.is_dir()


async def inside(name: str, *command: str) -> str:
    """Run a program in a namespace: `nsenter`, since `ip netns exec` hides the control groups."""
    return await run(
        "nsenter", f"--net={NAMESPACES / name}", *command, what=f"{command[0]} in {name} failed", remedy=_REMEDY
    )


def listen(name: str, port: int) -> socket.socket:
    """A socket of this process on the loopback of a namespace.

    Raises:
        OSError: there is no such namespace, or its port is taken.
    """
    with ThreadPoolExecutor(max_workers=1) as elsewhere:  # a thread that enters a namespace cannot be used again
        return elsewhere.submit(_listen, NAMESPACES / name, port).result()


def _listen(namespace: Path, port: int) -> socket.socket:
    with namespace.open("rb") as entered:
        if _LIBC.setns(entered.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))
    return socket.create_server(("127.0.0.1", port))


async def create_bridge(namespace: str, bridge: str, address: IPv4Interface) -> None:
    """A switch for the machines of a cluster, with an address of its own."""
    await ip("link", "add", bridge, "type", "bridge", namespace=namespace)
    await ip("addr", "add", str(address), "dev", bridge, namespace=namespace)
    await ip("link", "set", bridge, "up", namespace=namespace)


async def connect_machine(
    *, switch_namespace: str, bridge: str, port: str, machine: str, address: IPv4Interface, gateway: IPv4Address
) -> None:
    """A cable from the switch's `port` to `eth0` of the machine's namespace."""
    await ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", machine, namespace=switch_namespace)
    await ip("link", "set", port, "master", bridge, "up", namespace=switch_namespace)
    await ip("addr", "add", str(address), "dev", "eth0", namespace=machine)
    await ip("link", "set", "eth0", "up", namespace=machine)
    await ip("route", "add", "default", "via", str(gateway), namespace=machine)


async def connect_host(namespace: str, interface: str, link: IPv4Network) -> None:
    """A cable from this host to the cluster: the first address is the host's, the second the cluster's."""
    ours, theirs = link.hosts()
    peer = f"{interface}c"
    await ip("link", "add", interface, "type", "veth", "peer", "name", peer, "netns", namespace)
    await ip("addr", "add", f"{ours}/{link.prefixlen}", "dev", interface)
    await ip("link", "set", interface, "up")
    await ip("addr", "add", f"{theirs}/{link.prefixlen}", "dev", peer, namespace=namespace)
    await ip("link", "set", peer, "up", namespace=namespace)
    # pods answer to the host through the node's default route, and the cluster knows the way
    await ip("route", "add", "default", "via", str(ours), namespace=namespace)


async def connect_clusters(cable: str, one: tuple[str, IPv4Address], other: tuple[str, IPv4Address]) -> None:
    """A cable between the namespaces of two clusters, by which each reaches the address that this host knows it by.

    Args:
        cable: the name of both its ends.
        one: a namespace, and its address from this host.
        other: likewise.
    """
    await ip("link", "add", cable, "type", "veth", "peer", "name", cable, "netns", other[0], namespace=one[0])
    for (namespace, own), (_, peer) in ((one, other), (other, one)):
        await ip("addr", "add", str(own), "peer", str(peer), "dev", cable, namespace=namespace)
        await ip("link", "set", cable, "up", namespace=namespace)


async def delete_cable(namespace: str, cable: str) -> None:
    """Remove a cable by one of its ends; nothing when it is absent."""
    if (NAMESPACES / namespace).exists() and f" {cable}@" in await ip("link", "show", namespace=namespace):
        await ip("link", "delete", cable, namespace=namespace)


async def delete_link(interface: str) -> None:
    """Remove an interface of this host and its peer; nothing when it is absent."""
    if Path("/sys/class/net", interface).exists():
        with contextlib.suppress(ClusterError):  # it goes with its peer's namespace, which may be going just now
            await ip("link", "delete", interface)
        if Path("/sys/class/net", interface).exists():
            raise ClusterError(f"the interface {interface} cannot be removed", remedy=f"ip link delete {interface}")


async def routed_networks() -> list[IPv4Network]:
    """Every network that this host has a route to, but the default."""
    found = []
    for line in (await ip("-4", "route", "show", "table", "all")).splitlines():
        words = line.split()
        target = words[1] if words[0] in _KINDS_OF_ROUTES else words[0]
        if target not in {"default", "multicast"}:
            found.append(IPv4Network(target, strict=False))
    return found
