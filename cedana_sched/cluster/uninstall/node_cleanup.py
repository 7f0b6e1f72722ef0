"""Makes agents clean up their nodes, and waits for live agents only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import structlog

from cedana_sched.kube.builtin_kinds import Metadata, Node, Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ApiUnavailableError
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch, first_unsynced_reason
from cedana_sched.model.objects import names
from cedana_sched.model.objects.uninstall_mark import serialized_uninstall_mark

log = structlog.get_logger(__name__)


async def clean_up_nodes(api: Api, namespace: str, agents: str, seconds: float) -> tuple[str, ...]:
    """Clean up all nodes within the time limit.

    Args:
        api: may list and patch nodes, and list pods.
        namespace: of our own components.
        agents: label selector of the agents' pods.
        seconds: time limit; agents ignore the annotations that request the cleanup after it.

    Returns:
        Nodes not cleaned up: without an agent, or with one that failed. Their labels and annotations are removed.

    Raises:
        ApiError: the API server refused.
    """
    nodes = Informer(Watch(api, NODES, Node))
    pods = Informer(Watch(api, PODS, Pod, namespace=namespace, labels=agents))
    async with asyncio.TaskGroup() as group:
        watching = [group.create_task(informer.run()) for informer in (nodes, pods)]
        await _wait_listed(seconds, nodes, pods)
        until = SERVER_TIME.now() + timedelta(seconds=seconds)
        ours = [node.metadata.name for node in nodes if has_our_metadata(node.metadata)]
        served = nodes_with_agent(nodes, pods)
        for name in served:
            await _patch_node(api, name, {names.UNINSTALL: serialized_uninstall_mark(until)})
        log.info("agents are to leave their nodes", nodes=served)
        left = await _wait_cleaned_up(nodes, served, seconds)
        for task in watching:
            task.cancel()
    abandoned = tuple(name for name in sorted({*ours, *served}) if name not in left)
    for name in abandoned:
        log.warning("node not cleared: programs and containerd's configuration stay", node=name)
        published = dict.fromkeys((names.UNINSTALL, names.NODE_FACTS, names.NODE_GPUS, names.NODE_INTERRUPTION))
        await _patch_node(api, name, published, names.NODE_PREPARED, names.CPU_FEATURES)
    return abandoned


async def _wait_listed(seconds: float, *informers: Informer[Any]) -> None:
    """Wait until the informers have synced; raise ApiUnavailableError with the reason otherwise."""
    try:
        async with asyncio.timeout(seconds):
            for informer in informers:
                await informer.synced.wait()
    except TimeoutError:
        raise ApiUnavailableError(f"nodes cannot be left: {first_unsynced_reason(*informers)}") from None


def has_our_metadata(metadata: Metadata) -> bool:
    """Whether a node has a label or annotation of ours."""
    return any(key in metadata.labels for key in (names.NODE_PREPARED, names.CPU_FEATURES)) or any(
        key in metadata.annotations for key in (names.NODE_FACTS, names.UNINSTALL)
    )


def nodes_with_agent(nodes: Iterable[Node], agents: Iterable[Pod]) -> tuple[str, ...]:
    """Return the Ready nodes with a running agent."""
    served = {agent.spec.node_name for agent in agents if agent.status.phase == "Running"}
    return tuple(sorted(node.metadata.name for node in nodes if node.metadata.name in served and node.ready))


async def _wait_cleaned_up(nodes: Informer[Node], served: tuple[str, ...], seconds: float) -> set[str]:
    """Return the nodes that lost the annotation. Deleted nodes and nodes no longer Ready are not waited for."""
    changed, left, marked = asyncio.Event(), set[str](), set[str]()

    def on_node_change(before: Node | None, now: Node | None) -> None:
        known = now or before
        if known is not None and known.metadata.name in served:
            _track_uninstall_mark(known, marked, left)
            changed.set()

    nodes.subscribe(on_node_change)
    try:
        for node in nodes:
            on_node_change(None, node)
        async with asyncio.timeout(seconds):
            while any(_is_awaited(nodes, name) for name in served if name not in left):
                changed.clear()
                await changed.wait()
    except TimeoutError:
        log.warning("agents do not leave in time", nodes=sorted(set(served) - left))
    finally:
        nodes.unsubscribe(on_node_change)
    return left


def _track_uninstall_mark(node: Node, marked: set[str], left: set[str]) -> None:
    """Update the sets: a node is cleaned up once its annotation was seen and then removed."""
    name = node.metadata.name
    if names.UNINSTALL in node.metadata.annotations:
        marked.add(name)
    elif name in marked:
        left.add(name)


def _is_awaited(nodes: Informer[Node], name: str) -> bool:
    node = nodes.get(name)
    return node is not None and node.ready


async def _patch_node(api: Api, node: str, annotations: dict[str, str | None], *labels: str) -> None:
    """Write these annotations (None: remove), and remove these labels; a deleted node needs nothing."""
    metadata = {"annotations": annotations, "labels": dict.fromkeys(labels)}
    try:
        await api.patch(NODES, node, None, {"metadata": metadata})
    except AbsentError:
        log.info("node is gone", node=node)
