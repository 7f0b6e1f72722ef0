"""The Armada adapter keeps the contract."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from tests.unit.adapters.armada.armada_stage import ArmadaStage
from tests.unit.adapters.armada.fake_armada import FakeArmada


class TestArmadaConformance(AdapterConformance):
    @pytest.fixture
    async def stage(self) -> AsyncIterator[Stage]:
        armada = FakeArmada(time.time)
        async with armada.serving() as address:
            yield ArmadaStage(armada, address)
