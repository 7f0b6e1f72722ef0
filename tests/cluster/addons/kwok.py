"""kwok: nodes and pods of paper, by the thousand, beside the real ones.

A fake node is a Node whose heartbeats kwok sends; pods bound to it become Running at once, and nothing runs. kwok's own
manifests are used, with a configuration of ours. Its controller is a pod on a real node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes_asyncio.client import ApiException

from tests.cluster.addons.deployments import wait_available
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import WaitedInVainError, has_condition, wait_for_all
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.images.archive import BinaryImage
from tests.cluster.steps import Steps
from tests.cluster.together import together

NAMESPACE = "kube-system"
DEPLOYMENT = "kwok-controller"
ANNOTATION = "kwok.x-k8s.io/node"
TAINT: Mapping[str, str] = {"key": ANNOTATION, "value": "fake", "effect": "NoSchedule"}
"""Keeps pods of add-ons and tests off nodes that would only pretend to run them."""
TOLERATION: Mapping[str, str] = {"key": ANNOTATION, "operator": "Exists", "effect": "NoSchedule"}
COMPLETE_AFTER = "pod-complete.stage.kwok.x-k8s.io/delay"
"""Annotation of a Job's pod: it succeeds this long ("5s") after it has begun; without, it runs until it is deleted."""

_IMAGE = "registry.k8s.io/kwok/kwok:dev"
_PORT = 10247
_CONFIGURATION = "kwok"
_AT_ONCE = 50
"""Requests under way at a time: enough to keep the API server busy, few enough to let others in between."""

_OPTIONS: Mapping[str, Any] = {
    "enablePodsOnNodeSyncStreamWatch": True,
    "enableCRDs": [],
    "manageNodesWithAnnotationSelector": f"{ANNOTATION}=fake",
    "cidr": "10.0.0.0/24",
    "nodePort": _PORT,
    # a quarter of it passes between two heartbeats; a node is lost after eight seconds without
    "nodeLeaseDurationSeconds": 20,
    "nodeLeaseParallelism": 64,  # on a busy machine an answer takes its time, and heartbeats must not wait for it
    "nodePlayStageParallelism": 16,
    "podPlayStageParallelism": 32,
}

_READY_AGAIN: Mapping[str, Any] = {  # on a busy machine a heartbeat comes late, and the node's pods lose their Ready
    "apiVersion": "kwok.x-k8s.io/v1alpha1",
    "kind": "Stage",
    "metadata": {"name": "pod-ready-again"},
    "spec": {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {
            "matchExpressions": [
                {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
                {"key": ".status.phase", "operator": "In", "values": ["Running"]},
                {
                    "key": '.status.conditions.[] | select( .type == "Ready" ) | .status',
                    "operator": "In",
                    "values": ["False"],
                },
            ]
        },
        "next": {
            "statusTemplate": 'conditions:\n- lastTransitionTime: {{ Now | Quote }}\n  status: "True"\n  type: Ready\n'
        },
    },
}


@dataclass(frozen=True)
class Kwok:
    """kwok's controller with its own fast stages."""

    name: str = "kwok"
    tools: tuple[str, ...] = ("kwok",)

    def images(self, binaries: Binaries) -> Sequence[BinaryImage]:
        return [BinaryImage(_IMAGE, {"/kwok": binaries.program("kwok")}, ["/kwok"])]

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        with steps.step("kwok Available"):
            async with cluster.api() as api:
                for body in objects(binaries.files("kwok", "kustomize")):
                    await api.apply(body)
                await wait_available(cluster, api, NAMESPACE, [DEPLOYMENT])


def objects(manifests: Path) -> list[Object]:
    """All that kwok is made of.

    Args:
        manifests: kwok's own.
    """
    rbac = ("service_account", "role", "role_binding", "flow_schema")
    bodies = [body for name in rbac for body in _documents(manifests / "rbac" / f"{name}.yaml")]
    configuration = [
        {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": dict(_OPTIONS)},
        *stages(manifests),
    ]
    return [
        *bodies,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": _CONFIGURATION, "namespace": NAMESPACE},
            "data": {"kwok.yaml": "---\n".join(json.dumps(document) + "\n" for document in configuration)},
        },
        _deployment(manifests),
    ]


def stages(manifests: Path) -> list[Object]:
    """How nodes and pods go on: kwok's fast stages, but a Job's pods run for as long as they say, and stay Ready."""
    found = []
    for folder in ("node/fast", "node/heartbeat-with-lease", "pod/fast"):
        for path in sorted((manifests / "stage" / folder).glob("*-*.yaml")):
            found += _documents(path)
    for stage in found:
        if stage["metadata"]["name"] == "pod-complete":
            after = f'.metadata.annotations["{COMPLETE_AFTER}"]'
            stage["spec"]["selector"]["matchExpressions"].append({"key": after, "operator": "Exists"})
            stage["spec"]["delay"] = {"durationMilliseconds": 0, "durationFrom": {"expressionFrom": after}}
    return [*found, dict(_READY_AGAIN)]


def _documents(path: Path) -> list[Object]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def _deployment(manifests: Path) -> Object:
    [body] = _documents(manifests / "kwok" / "deployment.yaml")
    labels = {"app": DEPLOYMENT}
    body["metadata"]["namespace"] = NAMESPACE
    body["spec"]["selector"] = {"matchLabels": labels}
    template = body["spec"]["template"]
    template["metadata"] = {"labels": labels}
    [container] = template["spec"]["containers"]
    container |= {
        "image": _IMAGE,
        "imagePullPolicy": "Never",
        "args": ["--config=/etc/kwok/kwok.yaml", "--node-ip=$(POD_IP)"],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": _PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "kwok-config", "mountPath": "/etc/kwok", "readOnly": True}],
    }
    del container["startupProbe"]
    return body


async def add_nodes(
    cluster: Cluster,
    count: int,
    *,
    cpu: str = "32",
    memory: str = "256Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taint: bool = True,
    prefix: str = "fake",
    within: float = 120,
) -> list[str]:
    """Add fake nodes to a cluster that has kwok; returns their names when all are Ready.

    Args:
        cluster: one that is up.
        count: how many.
        cpu: allocatable on each.
        memory: allocatable on each.
        pods: how many each takes.
        labels: further ones.
        annotations: further ones.
        taint: whether only pods with `TOLERATION` come to them.
        prefix: what their names begin with; names that exist already are left as they are.
        within: seconds until all are Ready.

    Raises:
        ClusterError: they do not become Ready.
    """
    capacity = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    names = [f"{prefix}-{number}" for number in range(count)]
    bodies = (_node(name, capacity, labels or {}, annotations or {}, taint=taint) for name in names)
    selector = f"{ANNOTATION}={prefix}"
    ready = has_condition("Ready")
    wanted = set(names)

    def all_ready(nodes: list[Object]) -> bool:
        return len(nodes) >= count and wanted <= {node["metadata"]["name"] for node in nodes if ready(node)}

    async with cluster.api() as api:
        await _create_all(api, bodies)
        try:
            await wait_for_all(api, "v1", "Node", all_ready, selector=selector, within=within)
        except WaitedInVainError as error:
            raise ClusterError(
                f"{count} fake nodes are not Ready: {error}",
                remedy=f"see `kubectl -n {NAMESPACE} logs deploy/{DEPLOYMENT}`",
            ) from None
    return names


async def remove_nodes(cluster: Cluster, names: Sequence[str]) -> None:
    """Take fake nodes out again; their pods are collected by the controllers."""
    async with cluster.api() as api:
        rest = iter(names)

        async def worker() -> None:
            for name in rest:
                await api.delete("v1", "Node", name)

        await together(*(worker() for _ in range(_AT_ONCE)))


async def _create_all(api: Api, bodies: Iterator[Object]) -> None:
    async def worker() -> None:
        for body in bodies:
            try:
                await api.create(body)
            except ApiException as error:
                if error.status != 409:
                    raise

    await together(*(worker() for _ in range(_AT_ONCE)))


def _node(
    name: str, capacity: Mapping[str, str], labels: Mapping[str, str], annotations: Mapping[str, str], *, taint: bool
) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {ANNOTATION: "fake", **annotations},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
                ANNOTATION: name.rpartition("-")[0],
                **labels,
            },
        },
        "spec": {"taints": [dict(TAINT)] if taint else []},
        "status": {"allocatable": dict(capacity), "capacity": dict(capacity)},
    }
