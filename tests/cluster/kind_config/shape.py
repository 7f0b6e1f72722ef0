"""What the test cluster is to be: nodes and settings, free of kind's file format and of kubeadm's documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Literal

Role = Literal["control-plane", "worker"]
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine that a node sees, with what is mounted below it when the node boots."""

    host_path: Path
    container_path: str
    read_only: bool


@dataclass(frozen=True)
class Taint:
    """Keeps pods away that do not tolerate it."""

    key: str
    value: str
    effect: TaintEffect


@dataclass(frozen=True)
class Capacity:
    """What a node pretends to have: whole CPUs and bytes (None: the machine's), and extended resources by name."""

    cpu: int | None
    memory: int | None
    extended: Mapping[str, int]


@dataclass(frozen=True)
class NodeShape:
    """One node.

    `labels` and `taints` are all that the Node object begins with. A kubelet may not set labels below
    `node-role.kubernetes.io/` itself, neither by argument nor through the API: somebody else sets those.
    """

    name_suffix: str
    role: Role
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    mounts: tuple[Mount, ...]
    kubelet_configuration: Mapping[str, Any]
    kubelet_arguments: Mapping[str, str]
    capacity: Capacity


@dataclass(frozen=True)
class ClusterShape:
    """The whole cluster.

    Arguments are without their dashes; `feature_gates` and `runtime_config` are never among them. None as a name or
    a port leaves the choice to the cluster. Configurations are laid over what the cluster itself writes.
    """

    name: str | None
    nodes: tuple[NodeShape, ...]
    pod_subnet: IPv4Network
    service_subnet: IPv4Network
    api_server_port: int | None
    feature_gates: Mapping[str, bool]
    runtime_config: Mapping[str, str]
    api_server_arguments: Mapping[str, str]
    controller_manager_arguments: Mapping[str, str]
    scheduler_arguments: Mapping[str, str]
    kube_proxy_mode: Literal["nftables"]
    kube_proxy_configuration: Mapping[str, Any]
    containerd_patches: tuple[Mapping[str, Any], ...]
