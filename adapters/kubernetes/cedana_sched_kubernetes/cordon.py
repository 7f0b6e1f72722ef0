"""Cordons nodes that are about to end. Only our own cordon is undone.

An annotation says that a cordon was ours. It may be another's since: an admin may have uncordoned the node, and
cordoned it again. `metadata.managedFields` says who wrote last that the node is unschedulable. The cordon of a node
that is cordoned already is no write, and shows nowhere.
"""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from cedana_sched.kube.builtin_kinds import Metadata, Node
from cedana_sched.kube.client import FIELD_MANAGER, Api, Object
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import NODES
from cedana_sched.model.objects.names import CORDONED

log = structlog.get_logger(__name__)

_NOT_WRITTEN: Final = msgspec.UNSET


class _WrittenSpec(msgspec.Struct, frozen=True):
    unschedulable: msgspec.Raw | msgspec.UnsetType = msgspec.field(default=_NOT_WRITTEN, name="f:unschedulable")


class _WrittenFields(msgspec.Struct, frozen=True):
    spec: _WrittenSpec = msgspec.field(default=_WrittenSpec(), name="f:spec")


class _Writer(msgspec.Struct, frozen=True):
    manager: str = ""
    fields: _WrittenFields = msgspec.field(default=_WrittenFields(), name="fieldsV1")


class _NodeMetadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    uid: str
    resource_version: str
    annotations: dict[str, str] = {}
    managed_fields: tuple[_Writer, ...] = ()


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False


class CordonedNode(msgspec.Struct, frozen=True):
    """A Node, reduced to whether it is cordoned, and by whom."""

    metadata: _NodeMetadata
    spec: _NodeSpec = _NodeSpec()

    @property
    def is_cordoned_by_others(self) -> bool:
        """Return whether another writer was the last to cordon it."""
        writers = [
            one.manager for one in self.metadata.managed_fields if one.fields.spec.unschedulable is not _NOT_WRITTEN
        ]
        return self.spec.unschedulable and bool(writers) and FIELD_MANAGER not in writers


def cordon_patch(node: Node, notice: str) -> Object | None:
    """Return the patch that cordons a node; None if it is cordoned, or was uncordoned since by someone else.

    Args:
        node: as last read.
        notice: key of the notice; each cordons once.
    """
    if node.spec.unschedulable or node.metadata.annotations.get(CORDONED) == notice:
        return None
    return {"metadata": {"annotations": {CORDONED: notice}}, "spec": {"unschedulable": True}}


def uncordon_patch(node: CordonedNode) -> Object | None:
    """Return the patch that undoes our cordon in this version of the node; None if the node has no mark of one."""
    if CORDONED not in node.metadata.annotations:
        return None
    patch: Object = {"metadata": {"annotations": {CORDONED: None}, "resourceVersion": node.metadata.resource_version}}
    is_ours = node.spec.unschedulable and not node.is_cordoned_by_others
    return {**patch, "spec": {"unschedulable": None}} if is_ours else patch


def has_cordon_mark(node: Node) -> bool:
    """Return whether the node was cordoned by us, and that was not undone by us."""
    return CORDONED in node.metadata.annotations


async def cordon(api: Api, node: Node, notice: str) -> None:
    """Cordon the node for a notice, unless it is cordoned, or was uncordoned since by someone else.

    Raises:
        ApiError: the API server refused it.
    """
    if (patch := cordon_patch(node, notice)) is not None:
        await patch_same(api, NODES, node.metadata, patch)
        log.info("node cordoned", node=node.metadata.name)


async def undo_cordon(api: Api, node: Node) -> None:
    """Undo our cordon of the node, if there is one.

    Raises:
        ApiError: the API server refused it, or the node has just changed.
    """
    if not has_cordon_mark(node):
        return
    found = await api.find(NODES, node.metadata.name, into=CordonedNode)
    if found is None or found.metadata.uid != node.metadata.uid or (patch := uncordon_patch(found)) is None:
        return
    await patch_same(api, NODES, Metadata(node.metadata.name, uid=node.metadata.uid), patch)
    log.info("node uncordoned" if "spec" in patch else "cordon of another stays", node=node.metadata.name)
