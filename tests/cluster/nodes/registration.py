"""Makes the API server know of a node what its kubelet may not say itself."""

from __future__ import annotations

from kubernetes_asyncio.client import ApiException

from tests.cluster.api.client import Api, Object
from tests.cluster.nodes.node import Node


async def register(api: Api, node: Node) -> None:
    """Create the Node object with its labels, taints and extended resources before the kubelet does.

    The kubelet then only adds to it.
    """
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in node.shape.taints]
    extended = {name: str(count) for name, count in node.shape.capacity.extended.items()}
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            # the kubelet adds its own labels only to a Node that it creates itself
            "labels": {
                "kubernetes.io/hostname": node.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **node.shape.labels,
            },
        },
        "spec": {"podCIDR": str(node.pod_subnet), "podCIDRs": [str(node.pod_subnet)], "taints": taints},
        # the kubelet adds what else there is
        **({"status": {"capacity": extended, "allocatable": extended}} if extended else {}),
    }
    try:
        await api.create(body)
    except ApiException as error:
        if error.status != 409:  # it was killed and is started again
            raise


def why_not_ready(body: Object) -> str:
    """What a Node object says itself."""
    conditions = body.get("status", {}).get("conditions", ())
    return next((condition["message"] for condition in conditions if condition["type"] == "Ready"), "it said nothing")
