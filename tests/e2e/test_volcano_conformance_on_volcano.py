"""The Volcano adapter keeps the contract beside a real Volcano."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from tests.cluster.addons.catalog import install
from tests.cluster.addons.volcano import Volcano
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.steps import Steps
from tests.e2e.pod_hold import PodHold
from tests.e2e.product.volcano_queues import RECLAIMS, SCHEDULER
from tests.e2e.real_stage import BRIEF
from tests.e2e.volcano_field import Field
from tests.e2e.volcano_stage import RealVolcanoStage

pytestmark = pytest.mark.shape("volcano")

_CYCLE = "300ms"
"""The chart's own is a second; these are forty tests, in each of which Volcano decides about ten times."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def field(cluster: Cluster, api: Api, toolbox: str, steps: Steps) -> AsyncIterator[Field]:
    """A cluster that is full, of a Volcano with the actions that preempt."""
    await install(cluster, [Volcano(RECLAIMS, {"custom": {"scheduler_schedule_period": _CYCLE}})], steps)
    async with Field.laid(cluster, api, toolbox) as field:
        yield field


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hold(
    cluster: Cluster, api: Api, field: Field, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[PodHold]:
    """Our webhook, asked by the API server."""
    async with PodHold.in_force(cluster, api, SCHEDULER, tmp_path_factory.mktemp("webhook")) as hold:
        yield hold


@pytest.mark.brief(*BRIEF)
class TestVolcanoOnVolcano(AdapterConformance):
    @pytest.fixture
    def stage(self, namespace: Namespace, toolbox: str, field: Field, hold: PodHold) -> Stage:
        hold.forget()
        return RealVolcanoStage(namespace, toolbox, field, hold)


async def test_who_is_preempted_within_its_queue_waits_and_goes(
    namespace: Namespace, toolbox: str, field: Field, hold: PodHold
) -> None:
    hold.forget()
    stage = RealVolcanoStage(namespace, toolbox, field, hold, within=True)
    await AdapterConformance().test_a_victim_that_is_committed_is_evicted(stage)
