"""What the agent publishes about its node: labels for the scheduler, and the facts behind the labels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import datetime

import msgspec

from cedana_sched.kube.builtin_kinds import Condition, Node
from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import NODES
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Changed, Listed, Watch
from cedana_sched.model.compatibility import Compatibility, NodeDescription
from cedana_sched.model.errors import UsageError
from cedana_sched.model.gpus import Gpus
from cedana_sched.model.objects.names import (
    CPU_FEATURES,
    NODE_FACTS,
    NODE_GPUS,
    NODE_INTERRUPTION,
    NODE_PREPARED,
    UNINSTALL,
)
from cedana_sched.model.objects.node_interruption import NodeInterruption, read_interruption, serialized_interruption
from cedana_sched.model.objects.uninstall_mark import parse_uninstall_mark


class NodeFacts:
    """Our labels and annotations on one node."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node

    async def publish(self, description: NodeDescription, *, ready: bool) -> None:
        """Publish the node's facts; `ready`: workloads can be dumped and restored on the node.

        Raises:
            ApiError: the API server rejects the patch.
        """
        facts = msgspec.json.encode(description, order="deterministic").decode()
        prepared, cpu = "true" if ready else None, cpu_digest(description)
        metadata = {"labels": {NODE_PREPARED: prepared, CPU_FEATURES: cpu}, "annotations": {NODE_FACTS: facts}}
        await self._api.patch(NODES, self._node, None, {"metadata": metadata})

    async def publish_gpus(self, gpus: Gpus) -> None:
        """Publish the node's GPUs; a node without a driver has no such annotation.

        Raises:
            ApiError: the API server rejects the patch.
        """
        value = msgspec.json.encode(gpus).decode() if gpus != Gpus() else None
        await self._api.patch(NODES, self._node, None, {"metadata": {"annotations": {NODE_GPUS: value}}})

    async def publish_interruption(self, interruption: NodeInterruption | None) -> None:
        """Publish the provider's notice; None: there is none, or it was withdrawn.

        Raises:
            ApiError: the API server rejects the patch.
        """
        value = serialized_interruption(interruption) if interruption is not None else None
        await self._api.patch(NODES, self._node, None, {"metadata": {"annotations": {NODE_INTERRUPTION: value}}})

    async def read_interruption(self) -> NodeInterruption | None:
        """Return the published notice; None if there is none.

        Raises:
            ApiError: the node cannot be read.
        """
        node = await self._api.get(NODES, self._node, into=Node)
        return read_interruption(node.metadata.annotations)

    async def withdraw(self) -> None:
        """Remove our labels and annotations from the node.

        Raises:
            ApiError: the API server rejects the patch.
        """
        labels = dict.fromkeys((NODE_PREPARED, CPU_FEATURES))
        annotations = dict.fromkeys((NODE_FACTS, NODE_GPUS, NODE_INTERRUPTION))
        metadata = {"labels": labels, "annotations": annotations}
        await self._api.patch(NODES, self._node, None, {"metadata": metadata})

    async def wait_ready(self) -> None:
        """Return when the kubelet reports the node as Ready."""
        await self._wait_until(lambda node: any(_is_ready_condition(condition) for condition in node.status.conditions))

    async def is_marked_for_uninstall(self) -> bool:
        """Return whether the node is marked for our uninstallation.

        Raises:
            ApiError: the node cannot be read.
        """
        return has_uninstall_mark(await self._api.get(NODES, self._node, into=Node), SERVER_TIME.now())

    async def wait_marked_for_uninstall(self) -> None:
        """Return when the node is marked for our uninstallation."""
        await self._wait_until(lambda node: has_uninstall_mark(node, SERVER_TIME.now()))

    async def remove_uninstall_mark(self) -> None:
        """Remove the mark: the uninstallation from the node is complete.

        Raises:
            ApiError: the API server rejects the patch.
        """
        await self._api.patch(NODES, self._node, None, {"metadata": {"annotations": {UNINSTALL: None}}})

    async def _wait_until(self, holds: Callable[[Node], bool]) -> None:
        watch = Watch(self._api, NODES, Node, fields=f"metadata.name={self._node}")
        async with aclosing(watch.changes()) as changes:
            async for change in changes:
                nodes = change.objects if isinstance(change, Listed) else ()
                if isinstance(change, Changed):
                    nodes = (change.object,)
                if any(holds(node) for node in nodes):
                    return


def cpu_digest(compatibility: Compatibility) -> str:
    """Return the value of the label `CPU_FEATURES`: equal for nodes whose processors have the same features."""
    features = f"{compatibility.architecture} {' '.join(sorted(compatibility.cpu_features))}"
    return hashlib.sha256(features.encode()).hexdigest()[:16]


def has_uninstall_mark(node: Node, now: datetime) -> bool:
    """Return whether the node bears an uninstallation mark that can be read and is not over."""
    with suppress(UsageError):  # the coordinator publishes it
        return parse_uninstall_mark(node.metadata.annotations, now) is not None
    return False


def _is_ready_condition(condition: Condition) -> bool:
    return condition.type == "Ready" and condition.status == "True"
