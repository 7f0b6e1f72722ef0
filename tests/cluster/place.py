"""Names and addresses of one cluster, all derived from its name and the slot it was given.

Clusters stand side by side: whatever is outside a cluster's own namespaces (folders, control groups, namespaces,
interfaces, one /30 of addresses) carries its name or its slot.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from tests.cluster.errors import ClusterError

HOME_VARIABLE = "CLUSTER_HOME"
SLOTS = 200
_LINKS = IPv4Network("10.213.0.0/22")
_NODE_NETWORK = IPv4Network("172.30.0.0/24")
_PREFIX = "tc-"
_BRIDGE = "br0"


def home() -> Path:
    """Where clusters live; CLUSTER_HOME names another place."""
    return Path(os.environ.get(HOME_VARIABLE, "/var/lib/test-clusters"))


def check_name(name: str) -> str:
    """The name, when namespaces, folders and host names can bear it."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", name):
        raise ClusterError(
            f"CLUSTER_NAME is {name!r}",
            remedy="use at most 30 lower-case letters, digits and hyphens, beginning with a letter",
        )
    return name


def link_of(slot: int) -> IPv4Network:
    """The cable between this host and the cluster of a slot."""
    return IPv4Network((int(_LINKS.network_address) + 4 * slot, 30))


@dataclass(frozen=True)
class Place:
    """Where one cluster is: folders, names and addresses."""

    name: str
    slot: int
    node_network: IPv4Network = _NODE_NETWORK
    bridge: str = _BRIDGE

    @property
    def root(self) -> Path:
        return home() / self.name

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, for programs on this host."""
        return self.root / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        """Beside the root: those of a cluster that did not come up stay when the rest is removed."""
        return home() / f"{self.name}.logs"

    @property
    def namespace(self) -> str:
        """The network namespace that holds the switch and the control plane."""
        return f"{_PREFIX}{self.name}"

    @property
    def namespace_prefix(self) -> str:
        """What the network namespaces of the nodes begin with."""
        return f"{self.namespace}."

    @property
    def group(self) -> str:
        return f"test-clusters/{self.name}"

    @property
    def interface(self) -> str:
        """The host's end of the cable into the cluster."""
        return f"tc{self.slot}"

    @property
    def link(self) -> IPv4Network:
        return link_of(self.slot)

    @property
    def address_from_host(self) -> IPv4Address:
        """The control plane, as this host reaches it."""
        return self.link[2]

    @property
    def address(self) -> IPv4Address:
        """The control plane, as nodes and pods reach it; the nodes' gateway."""
        return self.node_network[1]

    @property
    def bridge_interface(self) -> IPv4Interface:
        return IPv4Interface((self.address, self.node_network.prefixlen))

    def node_interface(self, number: int) -> IPv4Interface:
        """The address of a node; numbers begin with 0."""
        return IPv4Interface((self.node_network[10 + number], self.node_network.prefixlen))

    def node_namespace(self, node: str) -> str:
        return f"{self.namespace_prefix}{node}"

    def machine_group(self, machine: str) -> str:
        return f"{self.group}/{machine}"

    def machine_state(self, machine: str) -> Path:
        return self.root / "machines" / machine
