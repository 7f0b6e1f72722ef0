"""The coordinator's process: waits for the lease, then leads until it is lost or the process is told to end."""

from __future__ import annotations

import asyncio
import socket
import uuid

import structlog

from cedana_sched import __version__
from cedana_sched.adapter.cluster import ClusterAccess, ClusterAdapter
from cedana_sched.adapter.contract import Adapter
from cedana_sched.adapter.registry import AdapterLoadError, load
from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator.agents import ObjectAgents
from cedana_sched.cluster.coordinator.gates import Gates
from cedana_sched.cluster.coordinator.journal import ObjectJournal
from cedana_sched.cluster.coordinator.metrics import CoordinatorMetrics
from cedana_sched.cluster.coordinator.pods import PodReports
from cedana_sched.cluster.coordinator.policies import ClusterPolicies
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.telling import Listeners, TellEvents
from cedana_sched.cluster.health import serving
from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.shell import Coordinator
from cedana_sched.kube.client import Api
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.lease import LeaderElection
from cedana_sched.kube.objects import Node, Pod
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.kube.watching import Mirror, Watch
from cedana_sched.model.objects import names

log = structlog.get_logger(__name__)

LEASE_NAME = "cedana-sched-coordinator"
COMPONENT = "cedana-sched"
FLUSH_SECONDS = 2.0
"""How long a coordinator that ends goes on writing objects; what is missing then is in the log."""


async def serve(configuration: CoordinatorConfiguration) -> None:
    """Lead when it is our turn, for ever.

    Raises:
        LeadershipLostError: another one may lead now; the process must end.
        ApiError: the API server refused what we cannot do without.
    """
    identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    log.info("coordinator starts", version=__version__, identity=identity)
    metrics = CoordinatorMetrics()
    async with Api.open() as api, serving(configuration.operations_port, {}):
        election = LeaderElection(api, LEASE_NAME, configuration.namespace, identity, configuration.lease.timing())
        await election.lead(lambda: _Leader(api, configuration, identity, metrics).run())


class _Leader:
    """The parts of a coordinator that leads, wired."""

    def __init__(
        self, api: Api, configuration: CoordinatorConfiguration, identity: str, metrics: CoordinatorMetrics
    ) -> None:
        self._metrics = metrics
        self._projection = Projection(api, configuration.namespace)
        self._nodes = Mirror(Watch(api, NODES, Node))
        self._agents = ObjectAgents(api, self._projection, self._nodes)
        self._policies = ClusterPolicies(api)
        self._pods = Mirror(Watch(api, PODS, Pod, labels=f"{names.PROTECTED}=true"))
        self._gates = Gates(api, self._pods, self._nodes)
        self._journal = ObjectJournal(api, configuration.namespace, identity, self._projection, self._gates.recorded)
        self._events = EventRecorder(api, COMPONENT, configuration.namespace)
        self._cluster = ClusterAccess(api, self._events, self._pods, self._policies, configuration.namespace)
        self._adapters = {name: _connected(name, self._cluster) for name in configuration.adapters}

    async def run(self) -> None:
        """Coordinate until cancelled."""
        adapters: dict[str, Adapter] = {PodReports.name: PodReports(self._cluster), **self._adapters}
        coordinator = Coordinator(
            journal=self._journal,
            adapters=adapters,
            agents=self._agents,
            clock=SystemClock(),
            listener=Listeners(TellEvents(self._events), self._metrics),
        )
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(work, name=name)
                for name, work in (
                    ("projection", self._projection.run()),
                    ("orders", self._agents.run()),
                    ("policies", self._policies.run()),
                    ("nodes", self._nodes.run()),
                    ("pods", self._pods.run()),
                    ("gates", self._gates.run()),
                    ("events", self._events.run()),
                    *((f"adapter {name}", adapter.run()) for name, adapter in self._adapters.items()),
                )
            ]
            await self._pods.synced.wait()
            await self._policies.synced.wait()
            try:
                async with coordinator:
                    self._metrics.leads(leads=True)
                    await coordinator.ended()
            finally:
                self._metrics.leads(leads=False)
                await self._flush()
                for task in background:
                    task.cancel()

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._projection.flushed()
        except TimeoutError:
            log.info("objects lag behind; the next coordinator carries them over from the log")


def _connected(name: str, cluster: ClusterAccess) -> ClusterAdapter:
    loaded = load(name)
    if not hasattr(loaded, "connect") or not hasattr(loaded, "run"):
        raise AdapterLoadError(f"adapter {name!r} is none for a cluster", remedy="see cedana_sched/adapter/cluster.py")
    adapter: ClusterAdapter = loaded.connect(cluster)
    return adapter
