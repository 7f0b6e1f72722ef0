"""Detects the provider by its protocol: each requires a header of its own, or grants what no other does.

Without a provider nothing answers at the link-local address, which no router forwards, or a server of another cloud
(OpenStack's answers some of AWS' paths) that grants no token of IMDSv2.
"""

from __future__ import annotations

from cedana_sched.cluster.node.interruptions.metadata_server import (
    MetadataError,
    MetadataServer,
    MetadataUnavailableError,
)
from cedana_sched.cluster.node.interruptions.providers import PROVIDERS
from cedana_sched.model.objects.node_interruption import InterruptionSource


async def detect_provider(server: MetadataServer) -> InterruptionSource | None:
    """Return the provider whose metadata server it is; None if it answers like none of them.

    Raises:
        MetadataUnavailableError: it does not answer at all.
    """
    for name, provider in PROVIDERS.items():
        try:
            await provider.prove(server)
        except MetadataUnavailableError:
            raise
        except MetadataError:
            continue
        return name
    return None
