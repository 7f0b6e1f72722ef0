"""Monitors the notices of the configured provider, or of the detected one, and the node's shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from cedana_sched.cluster.configuration import AUTO, InterruptionsConfiguration
from cedana_sched.cluster.node.interruptions.interruption_monitor import InterruptionMonitor, Publish, ReadPublished
from cedana_sched.cluster.node.interruptions.metadata_server import (
    LINK_LOCAL_URL,
    MetadataServer,
    MetadataUnavailableError,
)
from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch
from cedana_sched.cluster.node.interruptions.provider_detection import detect_provider
from cedana_sched.cluster.node.interruptions.providers import PROVIDERS, HasPods
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.objects.node_interruption import InterruptionSource
from cedana_sched.retrying import CHORES, Backoff

log = structlog.get_logger(__name__)

DETECTION_ATTEMPTS: Final = 6
"""About a minute at most: a metadata server may be up later than the node's network."""


async def monitor_interruptions(
    configuration: InterruptionsConfiguration,
    publish: Publish,
    read_published: ReadPublished,
    has_pods: HasPods,
    watches: Sequence[NoticeWatch] = (),
) -> None:
    """Publish notices until cancelled; first remove one that an earlier configuration has left.

    Args:
        configuration: names the provider.
        publish: see `InterruptionMonitor`.
        read_published: likewise.
        has_pods: see `AzureMachine`.
        watches: read whatever the provider is.
    """
    async with MetadataServer.open(configuration.metadata_url or LINK_LOCAL_URL) as server:
        find = partial(_find_watches, configuration, server, has_pods)
        await InterruptionMonitor(watches, find, publish, read_published).run()


async def _find_watches(
    configuration: InterruptionsConfiguration, server: MetadataServer, has_pods: HasPods
) -> tuple[NoticeWatch, ...]:
    """Return the watches of the provider; none if no provider is configured or detected."""
    provider = await _choose_provider(configuration, server)
    if provider is None:
        return ()
    log.info("watching for notices of interruption", provider=provider)
    return PROVIDERS[provider].watches(server, SERVER_TIME.now, has_pods)


async def _choose_provider(
    configuration: InterruptionsConfiguration, server: MetadataServer
) -> InterruptionSource | None:
    if configuration.provider != AUTO:
        return None if configuration.provider == "none" else InterruptionSource(configuration.provider)
    backoff = Backoff(CHORES)
    while True:
        try:
            return await detect_provider(server)
        except MetadataUnavailableError as error:
            pause = backoff.next_pause()
            if backoff.failures == DETECTION_ATTEMPTS:
                log.info("the node has no provider that announces interruptions", error=str(error))
                return None
        await asyncio.sleep(pause)
