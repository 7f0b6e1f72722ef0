"""Detects the provider by its protocol: each requires a header of its own, or grants what no other does.

Without a provider nothing answers at the link-local address, which no router forwards, or a server of another cloud
(OpenStack's answers some of AWS' paths) that grants no token of IMDSv2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from cedana_sched.cluster.node.interruptions.aws_notices import request_token
from cedana_sched.cluster.node.interruptions.azure_notices import read_machine
from cedana_sched.cluster.node.interruptions.gcp_notices import FLAVOR, PREEMPTED_PATH, require_google
from cedana_sched.cluster.node.interruptions.metadata_server import (
    MetadataError,
    MetadataServer,
    MetadataUnavailableError,
)
from cedana_sched.model.objects.node_interruption import InterruptionSource


async def detect_provider(server: MetadataServer) -> InterruptionSource | None:
    """Return the provider whose metadata server it is; None if it answers like none of them.

    Raises:
        MetadataUnavailableError: it does not answer at all.
    """
    for provider, prove in _PROOFS.items():
        try:
            await prove(server)
        except MetadataUnavailableError:
            raise
        except MetadataError:
            continue
        return provider
    return None


async def _prove_gcp(server: MetadataServer) -> None:
    require_google(await server.request(PREEMPTED_PATH, FLAVOR))


_PROOFS: Final[dict[InterruptionSource, Callable[[MetadataServer], Awaitable[object]]]] = {
    InterruptionSource.AWS: request_token,
    InterruptionSource.GCP: _prove_gcp,
    InterruptionSource.AZURE: read_machine,
}
"""What raises MetadataError where the server is none of the provider's."""
