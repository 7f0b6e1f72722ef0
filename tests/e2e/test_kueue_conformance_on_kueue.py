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
from tests.e2e.real_stage import BRIEF

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


@pytest.mark.brief(
    *BRIEF,
    "test_a_release_in_which_the_adapter_died_is_finished_after_a_restart",
    "test_a_gang_whose_release_was_decided_before_a_restart_goes_as_a_whole",
    "test_a_victim_that_ends_by_itself_holds_nobody_up",
    "test_past_its_deadline_a_victim_is_evicted_without_a_snapshot",
)
class TestKueueOnKueue(AdapterConformance):
    @pytest.fixture
    def stage(self, queues: Namespace, toolbox: str) -> Stage:
        return RealKueueStage(queues, toolbox)
