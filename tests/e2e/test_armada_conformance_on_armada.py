"""The Armada adapter keeps the contract beside a real Armada."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.jobs import Jobs
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.armada_stage import RealArmadaStage
from tests.e2e.cable import Cable
from tests.e2e.real_stage import BRIEF

pytestmark = pytest.mark.any_shape


@pytest.mark.brief(*BRIEF)
class TestArmadaOnArmada(AdapterConformance):
    @pytest_asyncio.fixture(loop_scope="session")
    async def stage(self, namespace: Namespace, toolbox: str, armada: Armada) -> AsyncIterator[Stage]:
        async with Jobs.opened(armada.address, namespace.name) as jobs, Cable.to(armada.address) as cable:
            queue = await jobs.queue(f"{namespace.name}-bio")
            yield RealArmadaStage(namespace, toolbox, jobs, queue, cable)
