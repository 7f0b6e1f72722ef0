"""Publishes the node's GPUs beside the agent's work: the driver may be loaded long after the agent starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from cedana_sched.kube.errors import ApiError
from cedana_sched.model.gpus import Gpus
from cedana_sched.retrying import retry
from cedana_sched.snapshot.gpus import HANGS, find_gpus

LOOK_AGAIN_SECONDS = 600.0


async def publish_gpus(publish: Callable[[Gpus], Awaitable[None]], root: Path) -> None:
    """Publish the node's GPUs, and until they are all known why not. Returns then, or when the driver hangs.

    Args:
        publish: raises ApiError where the API server rejects it.
        root: where the host's files are.
    """
    published: Gpus | None = None
    while True:
        gpus = await find_gpus(root)
        if gpus != published:
            await retry("publication of the node's GPUs", partial(publish, gpus), ApiError)
            published = gpus
        if gpus.problem == HANGS or (gpus.devices and not gpus.problem):
            return
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
