"""The Kueue adapter keeps the contract beside a real Kueue."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.kueue_hold import suspension_held
from tests.e2e.kueue_stage import HELD, RealKueueStage
from tests.e2e.product.queues import groups

pytestmark = pytest.mark.any_shape


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hold(cluster: Cluster, api: Api, kueue: None) -> AsyncIterator[None]:
    """In force for Jobs that say so."""
    labels = {HELD: "true"}
    async with (
        Namespace.created(cluster, api, "conformance-on-kueue") as namespace,
        suspension_held(namespace, labels=labels, objectSelector={"matchLabels": labels}),
    ):
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def queues(namespace: Namespace, kinds: None, hold: None) -> AsyncIterator[Namespace]:
    """Two groups that may borrow from each other."""
    async with groups(namespace, check=None):
        yield namespace


class TestKueueOnKueue(AdapterConformance):
    @pytest.fixture
    def stage(self, queues: Namespace, toolbox: str) -> Stage:
        return RealKueueStage(queues, toolbox)
