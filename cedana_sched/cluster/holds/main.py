"""The process that keeps a node's holds: it serves until it is told to end, and then until it holds nothing."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched import __version__
from cedana_sched.cluster.holds.configuration import HoldsConfiguration
from cedana_sched.cluster.holds.keeper import Keeper
from cedana_sched.cluster.node.draining import quiet

log = structlog.get_logger(__name__)


async def serve(configuration: HoldsConfiguration, told: asyncio.Event) -> None:
    """Serve the node until `told` to end; the next one, which listens as well by then, takes what comes later."""
    keeper = Keeper(configuration.socket, configuration.agent_away_seconds)
    async with keeper, keeper.serve(configuration.port):
        configuration.serving.touch()
        log.info("holds are kept", version=__version__, port=configuration.port)
        await told.wait()
        await quiet([keeper])
