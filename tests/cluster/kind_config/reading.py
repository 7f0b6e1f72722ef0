"""A kind file becomes the shape of a cluster, with kind's and kubeadm's defaults, or is refused in one line.

Where kind passes over what is written, or lets one place win over another silently, the file is refused: a test that
means something else on kind than here is worth nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tests.cluster.errors import ClusterError
from tests.cluster.kind_config import containerd, kubeadm, written
from tests.cluster.kind_config.capacity import capacity_of
from tests.cluster.kind_config.kubeadm import Patch, patched
from tests.cluster.kind_config.labels_and_taints import (
    CONTROL_PLANE_LABELS,
    CONTROL_PLANE_LABELS_BESIDE_WORKERS,
    CONTROL_PLANE_TAINT,
    parse_labels,
    parse_taints,
)
from tests.cluster.kind_config.refusal import RefusedFieldError, first_refusal
from tests.cluster.kind_config.shape import ClusterShape, Mount, NodeShape, Taint
from tests.cluster.kind_config.yaml_documents import kind_document

_PATCHES: Final = "kubeadmConfigPatches"


def read(path: Path) -> ClusterShape:
    """Read a file of kind's format; relative host paths begin where this process works, as with kind.

    Raises:
        ClusterError: it cannot be read, or says what cannot be honoured.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        what = f"{path}: cannot be read: {error}"
        raise ClusterError(what, remedy="name a kind file, such as kind-configs/two-nodes.yaml") from error
    try:
        return parse(text)
    except RefusedFieldError as refusal:
        raise refusal.in_file(path) from refusal


def parse(text: str) -> ClusterShape:
    """The same, from text.

    Raises:
        RefusedFieldError: it says what cannot be honoured.
    """
    try:
        cluster = written.Cluster.model_validate(kind_document(text))
    except ValidationError as error:
        raise first_refusal(error, "", unknown="is no field of kind's v1alpha4 Cluster") from error
    nodes = cluster.nodes or (written.Node(),)
    _one_control_plane(nodes)
    everywhere = [patch for entry in kubeadm.read_patches(cluster.kubeadm_config_patches, _PATCHES) for patch in entry]
    of_nodes = [[*everywhere, *_own_patches(node, index)] for index, node in enumerate(nodes)]
    of_control_plane = next(
        patches for node, patches in zip(nodes, of_nodes, strict=True) if node.role == "control-plane"
    )
    components = patched("ClusterConfiguration", {}, of_control_plane)
    kubelet = patched("KubeletConfiguration", {}, of_control_plane)  # kubeadm gives the first node's to all
    return ClusterShape(
        name=cluster.name or None,
        nodes=tuple(
            _node(node, suffix, patches, index, alone=len(nodes) == 1, kubelet_configuration=kubelet)
            for index, (node, suffix, patches) in enumerate(zip(nodes, _suffixes(nodes), of_nodes, strict=True))
        ),
        pod_subnet=cluster.networking.pod_subnet,
        service_subnet=cluster.networking.service_subnet,
        api_server_port=max(cluster.networking.api_server_port, 0) or None,
        feature_gates=cluster.feature_gates,
        runtime_config=cluster.runtime_config,
        api_server_arguments=components.get("apiServer", {}).get("extraArgs", {}),
        controller_manager_arguments=components.get("controllerManager", {}).get("extraArgs", {}),
        scheduler_arguments=components.get("scheduler", {}).get("extraArgs", {}),
        kube_proxy_mode="nftables",
        kube_proxy_configuration=patched("KubeProxyConfiguration", {}, of_control_plane),
        containerd_patches=containerd.read_patches(cluster.containerd_config_patches),
    )


def _one_control_plane(nodes: Sequence[written.Node]) -> None:
    places = [index for index, node in enumerate(nodes) if node.role == "control-plane"]
    if not places:
        raise RefusedFieldError("nodes", [node.role for node in nodes], "have no control-plane", remedy="add one")
    if len(places) > 1:
        problem = "is a second one, and the test cluster has one control plane"
        raise RefusedFieldError(f"nodes[{places[1]}].role", "control-plane", problem, remedy="make it a worker")


def _suffixes(nodes: Sequence[written.Node]) -> list[str]:
    """Names as kind gives them, less the cluster's: control-plane, worker, worker2 and so on."""
    seen: Counter[str] = Counter()
    suffixes = []
    for node in nodes:
        seen[node.role] += 1
        suffixes.append(f"{node.role}{seen[node.role] if seen[node.role] > 1 else ''}")
    return suffixes


def _own_patches(node: written.Node, index: int) -> list[Patch]:
    """The patches of one node, each of a kind that reaches it."""
    field = f"nodes[{index}].{_PATCHES}"
    entries = kubeadm.read_patches(node.kubeadm_config_patches, field)
    for number, entry in enumerate(entries):
        for patch in entry:
            if (patch.kind == "JoinConfiguration") == (node.role == "control-plane"):
                problem = f"has no effect on a {node.role}, nor has it with kind"
                instead = "a JoinConfiguration here, or use the cluster's own kubeadmConfigPatches"
                remedy = "write an InitConfiguration" if node.role == "control-plane" else f"write {instead}"
                raise RefusedFieldError(f"{field}[{number}].kind", patch.kind, problem, remedy=remedy)
    return [patch for entry in entries for patch in entry]


def _node(
    node: written.Node,
    suffix: str,
    patches: Sequence[Patch],
    index: int,
    *,
    alone: bool,
    kubelet_configuration: Mapping[str, Any],
) -> NodeShape:
    control_plane = node.role == "control-plane"
    document = patched("InitConfiguration" if control_plane else "JoinConfiguration", {}, patches)
    registration = document.get("nodeRegistration", {})
    arguments = dict(registration.get("kubeletExtraArgs", {}))
    registered, labelled = arguments.pop("register-with-taints", ""), arguments.pop("node-labels", "")
    if node.labels and labelled:
        problem = "would be lost with kind: the kubelet's argument node-labels of a patch replaces them"
        raise RefusedFieldError(
            f"nodes[{index}].labels", node.labels, problem, remedy="write all labels in one of the places"
        )
    if registration.get("taints") and registered:
        problem = "does not go with nodeRegistration.taints of a patch, of which one replaces the other"
        field = f"nodes[{index}]: register-with-taints"
        raise RefusedFieldError(field, registered, problem, remedy="write all taints in one of the places")
    labels = {**node.labels, **parse_labels(labelled)}
    capacity = capacity_of(labels)
    if control_plane:
        labels |= CONTROL_PLANE_LABELS | ({} if alone else CONTROL_PLANE_LABELS_BESIDE_WORKERS)
    default = (CONTROL_PLANE_TAINT,) if control_plane else ()
    taints = tuple(_taint(taint) for taint in registration["taints"]) if "taints" in registration else default
    taints += parse_taints(registered)
    if alone:  # kind takes this one away when there is no worker
        taints = tuple(taint for taint in taints if taint.key != CONTROL_PLANE_TAINT.key)
    return NodeShape(
        name_suffix=suffix,
        role=node.role,
        labels=labels,
        taints=taints,
        mounts=tuple(
            Mount(Path(mount.host_path).absolute(), mount.container_path, mount.read_only)
            for mount in node.extra_mounts
        ),
        kubelet_configuration=kubelet_configuration,
        kubelet_arguments=arguments,
        capacity=capacity,
    )


def _taint(document: Mapping[str, Any]) -> Taint:
    return Taint(document["key"], document.get("value", ""), document["effect"])
