"""The process of the `prestop-proxy` pod: serves until SIGTERM, then drains its held calls."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched import __version__
from cedana_sched.cluster.prestop_proxy.call_forwarder import CallForwarder
from cedana_sched.cluster.prestop_proxy.configuration import PreStopProxyConfiguration
from cedana_sched.cluster.prestop_proxy.listening_socket_registry import registering_socket
from cedana_sched.component.draining import wait_idle

log = structlog.get_logger(__name__)


async def serve(configuration: PreStopProxyConfiguration, stopping: asyncio.Event) -> None:
    """Serve the node until `stopping` is set and no call is held; new calls go to the successor once it listens."""
    keeper = CallForwarder(configuration.socket, configuration.agent_away_seconds)
    async with keeper, keeper.serve(configuration.port):
        with registering_socket(configuration.listeners, keeper.inode, configuration.port):
            configuration.serving.touch()
            log.info("serving preStop calls", version=__version__, port=configuration.port)
            await stopping.wait()
            await keeper.leave_to_successor()
            await wait_idle([keeper])
            await keeper.close()
        await wait_idle([keeper])  # calls that came meanwhile, if there is no successor
