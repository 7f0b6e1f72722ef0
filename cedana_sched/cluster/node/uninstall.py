"""Uninstallation from a node: the uninstaller marks the node; the node's agent cleans up and removes the mark.

An agent that is restarted meanwhile finds the mark and continues; an agent without a mark installs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

import structlog

from cedana_sched.kube.errors import ApiError
from cedana_sched.retrying import retry

log = structlog.get_logger(__name__)


class Facts(Protocol):
    """Our labels and mark on the node; see `NodeFacts`."""

    async def wait_marked_for_uninstall(self) -> None: ...
    async def withdraw(self) -> None: ...
    async def remove_uninstall_mark(self) -> None: ...


class NodeInstallation(Protocol):
    """Our files on the node; see `Installation`."""

    async def uninstall(self) -> None: ...


async def run_until_marked(facts: Facts, *works: Coroutine[Any, Any, None]) -> None:
    """Run all `works` until the node is marked; an error of any of them ends the wait."""
    async with asyncio.TaskGroup() as group:
        working = [group.create_task(work) for work in works]
        await facts.wait_marked_for_uninstall()
        log.info("the node is to be left")
        for task in working:
            task.cancel()


async def uninstall(facts: Facts, installation: NodeInstallation) -> None:
    """Uninstall: first the labels, so that no more pods are scheduled here; last the mark.

    Raises:
        HostError: containerd's configuration can no longer be parsed.
    """
    await retry("removal of the node's labels", facts.withdraw, ApiError)
    await installation.uninstall()
    await retry("removal of the node's mark", facts.remove_uninstall_mark, ApiError)
    log.info("node left")
