"""The coordinator's process: waits for the Lease, then leads until it loses the Lease or the process gets SIGTERM."""

from __future__ import annotations

import asyncio
import socket
import uuid
from contextlib import AsyncExitStack

import structlog

from cedana_sched import __version__
from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator.adapter_supervision import AdapterMetrics
from cedana_sched.cluster.coordinator.credentials.service import serving_credentials
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.cluster.coordinator.metrics import CoordinatorMetrics
from cedana_sched.cluster.coordinator.sealing_secret_creation import ensure_sealing_secret
from cedana_sched.component.health import Ready, serve_health
from cedana_sched.kube.client import Api
from cedana_sched.kube.lease import LeaderElection
from cedana_sched.kube.token_access import TokenAccess

log = structlog.get_logger(__name__)

LEASE_NAME = "cedana-sched-coordinator"


def own_identity() -> str:
    """Return a unique name for this process."""
    return f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


async def serve(configuration: CoordinatorConfiguration) -> None:
    """Lead whenever this replica holds the Lease, forever.

    Raises:
        LeadershipLostError: another replica may lead now; the process must end.
    """
    identity = own_identity()
    log.info("coordinator starts", version=__version__, identity=identity)
    metrics, adapters = CoordinatorMetrics(), AdapterMetrics()
    leading: list[LeadingCoordinator] = []
    ready: dict[str, Ready] = {"objects": lambda: leading[0].unsynced_reason if leading else None}
    async with (
        Api.open() as api,
        AsyncExitStack() as stack,
        serve_health(
            configuration.operations_port,
            ready,
            readable=TokenAccess(api) if configuration.metrics_authentication else None,
        ),
    ):
        if configuration.credentials is not None:
            given = serving_credentials(api, configuration.credentials, configuration.namespace)
            ready["credentials"] = await stack.enter_async_context(given)
        timing = configuration.lease.timing()
        election = LeaderElection(api, LEASE_NAME, configuration.namespace, identity, timing)

        async def lead() -> None:
            leader = LeadingCoordinator(
                api,
                configuration,
                identity,
                metrics,
                on_records_saved=metrics.on_records_saved,
                adapter_metrics=adapters,
                count_rejected_write=metrics.count_rejected_write,
            )
            leading.append(leader)
            async with asyncio.TaskGroup() as group, leader.run_coordinator() as coordinator:
                metrics.set_leading(leads=True)
                if configuration.sealing_secret is not None:
                    making = ensure_sealing_secret(api, configuration.namespace, configuration.sealing_secret)
                    group.create_task(making, name="keys that seal snapshots")
                try:
                    await coordinator.wait_ended()
                finally:
                    metrics.set_leading(leads=False)

        await election.lead(lead)
