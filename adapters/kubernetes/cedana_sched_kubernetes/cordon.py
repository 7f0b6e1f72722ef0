"""Cordons nodes that are about to end. Only our own cordon is undone: an annotation says that it is ours."""

from __future__ import annotations

import structlog

from cedana_sched.kube.builtin_kinds import Node
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import NODES
from cedana_sched.model.objects.names import CORDONED

log = structlog.get_logger(__name__)


def cordon_patch(node: Node, notice: str) -> Object | None:
    """Return the patch that cordons a node; None if it is cordoned, or was uncordoned since by someone else.

    Args:
        node: as last read.
        notice: key of the notice; each cordons once.
    """
    if node.spec.unschedulable or node.metadata.annotations.get(CORDONED) == notice:
        return None
    return {"metadata": {"annotations": {CORDONED: notice}}, "spec": {"unschedulable": True}}


def uncordon_patch(node: Node) -> Object | None:
    """Return the patch that undoes our cordon; None if the node has none."""
    if CORDONED not in node.metadata.annotations:
        return None
    patch: Object = {"metadata": {"annotations": {CORDONED: None}}}
    return {**patch, "spec": {"unschedulable": None}} if node.spec.unschedulable else patch


async def apply_to_node(api: Api, node: Node, patch: Object | None) -> None:
    """Apply the patch, if there is one.

    Raises:
        ApiError: the API server refused it.
    """
    if patch is not None:
        await patch_same(api, NODES, node.metadata, patch)
        log.info(
            "node cordoned" if patch.get("spec", {}).get("unschedulable") else "node uncordoned",
            node=node.metadata.name,
        )
