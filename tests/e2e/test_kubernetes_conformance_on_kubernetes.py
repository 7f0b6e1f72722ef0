"""The Kubernetes adapter keeps the contract beside a real kube-scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.kubernetes_stage import SCHEDULER, RealKubernetesStage, Seat
from tests.e2e.pod_hold import PodHold
from tests.e2e.real_stage import BRIEF

pytestmark = pytest.mark.any_shape


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def seat(cluster: Cluster, api: Api) -> AsyncIterator[Seat]:
    """What pods compete for."""
    async with Seat.on_a_node(cluster, api) as seat:
        yield seat


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hold(
    cluster: Cluster, api: Api, kinds: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[PodHold]:
    """Our webhook, asked by the API server."""
    async with PodHold.in_force(cluster, api, SCHEDULER, tmp_path_factory.mktemp("webhook")) as hold:
        yield hold


@pytest.mark.brief(*BRIEF)
class TestKubernetesOnKubernetes(AdapterConformance):
    @pytest.fixture
    def stage(self, namespace: Namespace, toolbox: str, seat: Seat, hold: PodHold) -> Stage:
        hold.forget()
        return RealKubernetesStage(namespace, toolbox, seat, hold)
