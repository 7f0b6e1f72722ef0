"""The process of the `holds` pod: serves until SIGTERM, then drains its held calls."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched import __version__
from cedana_sched.cluster.holds.configuration import HoldsConfiguration
from cedana_sched.cluster.holds.keeper import Keeper
from cedana_sched.cluster.holds.listeners import announcing
from cedana_sched.service.draining import wait_idle

log = structlog.get_logger(__name__)


async def serve(configuration: HoldsConfiguration, stopping: asyncio.Event) -> None:
    """Serve the node until `stopping` is set and no call is held; new calls go to the successor once it listens."""
    keeper = Keeper(configuration.socket, configuration.agent_away_seconds)
    async with keeper, keeper.serve(configuration.port):
        with announcing(configuration.listeners, keeper.inode, configuration.port):
            configuration.serving.touch()
            log.info("holds are kept", version=__version__, port=configuration.port)
            await stopping.wait()
            await keeper.leave()
            await wait_idle([keeper])
            await keeper.close()
        await wait_idle([keeper])  # calls that came meanwhile, if there is no successor
