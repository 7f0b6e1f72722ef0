"""The own address of sockets, which was that of the pod that was saved, becomes the new pod's.

CRIU binds a socket to the address that it had, which a new pod does not have: the restore would fail, or, with IPv6,
leave the program listening where nothing arrives. A pod on several networks has several addresses, and it is unknown
which of the new ones replaces which: its sockets keep their addresses, but for connected UDP sockets, which lose them,
and get one when they are connected.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import pairwise
from pathlib import Path

from cedana_sched.cluster.node.restoring.internet_addresses import Address, address_words, read_address
from cedana_sched.snapshot.images import Entry, Images

_IMAGE = "files.img"
_CONNECTED, _CLOSED, _LISTENING = 1, 7, 10  # linux tcp_states.h
_GLOBAL_SCOPE = "00"  # linux ipv6.h


def read_network_addresses(pid: int, proc: Path = Path("/proc")) -> tuple[Address, ...]:
    """Return the addresses of a process's network that others reach: no loopback and no link-local addresses.

    Raises:
        OSError: the process has ended.
    """
    routes = [line.split() for line in (proc / str(pid) / "net/fib_trie").read_text().splitlines()]
    local = {before[1] for before, words in pairwise(routes) if words[:3] == ["/32", "host", "LOCAL"]}
    found: set[Address] = {IPv4Address(text) for text in local}
    path = proc / str(pid) / "net/if_inet6"
    for line in path.read_text().splitlines() if path.exists() else ():  # a kernel may be without IPv6
        address, _, _, scope, _, _ = line.split()
        if scope == _GLOBAL_SCOPE:
            found.add(IPv6Address(int(address, 16)))
    return tuple(sorted((one for one in found if not (one.is_loopback or one.is_link_local)), key=str))


def move_own_addresses(images: Images, folder: Path, addresses: Collection[Address]) -> None:
    """Replace the saved pod's address in staged images by the new pod's, whose addresses these are.

    Raises:
        SnapshotError: the image cannot be decoded.
    """
    content = images.read_image(_IMAGE) or {"entries": []}
    sockets = [entry["isk"] for entry in content["entries"] if "isk" in entry]
    own = [(one, address) for one in sockets if (address := _own_address(one)) is not None]
    moved, changed = _pair_addresses({address for _, address in own}, addresses), False
    for one, address in own:
        if _is_open_tcp(one):  # restored as closed
            continue
        unset = ip_address(0 if address.version == 4 else "::") if _is_connected_datagram(one) else None
        if (new := moved.get(address, unset)) is not None:
            one["src_addr"], changed = address_words(one["family"], new), True
    if changed:
        images.replace(folder / _IMAGE, content)


def _pair_addresses(old: Collection[Address], new: Collection[Address]) -> Mapping[Address, Address]:
    """Return the new address for each old one, as far as there is one old and one new of its version."""
    moved = dict[Address, Address]()
    for version in (4, 6):
        before, now = ([one for one in known if one.version == version] for known in (old, new))
        if len(before) == len(now) == 1:
            moved[before[0]] = now[0]
    return moved


def _own_address(inet: Entry) -> Address | None:
    """Return the address of the pod itself to which a socket is bound."""
    try:
        address = read_address(inet["family"], inet["src_addr"])
    except (ValueError, OverflowError):  # fewer words than an address has, which no dump writes
        return None
    is_own = not (address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local)
    return address if is_own else None


def _is_connected_datagram(inet: Entry) -> bool:
    return bool(inet["proto"] == socket.IPPROTO_UDP and inet["state"] == _CONNECTED)


def _is_open_tcp(inet: Entry) -> bool:
    return bool(inet["proto"] == socket.IPPROTO_TCP and inet["state"] not in {_CLOSED, _LISTENING})
