"""The end of our part of a node: the uninstallation marks the node, its agent clears it and takes the mark away.

An agent that is restarted meanwhile finds the mark, and goes on; one without a mark installs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

import structlog

from cedana_sched.kube.retrying import until_answered

log = structlog.get_logger(__name__)


class Facts(Protocol):
    """What is written on the node; see `NodeFacts`."""

    async def wait_marked_leaving(self) -> None: ...
    async def withdraw(self) -> None: ...
    async def remove_leaving_mark(self) -> None: ...


class OnNode(Protocol):
    """What is laid on the node; see `Installation`."""

    async def uninstall(self) -> None: ...


async def until_told_to_leave(facts: Facts, *works: Coroutine[Any, Any, None]) -> None:
    """Do all `works` until the node is to be left; the errors of any end the waiting."""
    async with asyncio.TaskGroup() as group:
        working = [group.create_task(work) for work in works]
        await facts.wait_marked_leaving()
        log.info("the node is to be left")
        for task in working:
            task.cancel()


async def leave(facts: Facts, installation: OnNode) -> None:
    """Clear the node: first the labels, so that no pod is sent here any more; last the mark.

    Raises:
        HostError: containerd's configuration is no more what we can read.
    """
    await until_answered("removal of the node's labels", facts.withdraw)
    await installation.uninstall()
    await until_answered("removal of the node's mark", facts.remove_leaving_mark)
    log.info("node left")
