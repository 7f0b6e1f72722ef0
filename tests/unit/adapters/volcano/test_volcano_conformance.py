"""The Volcano adapter keeps the contract."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from tests.unit.adapters.volcano.volcano_stage import VolcanoStage


class TestVolcanoConformance(AdapterConformance):
    @pytest.fixture
    def stage(self) -> Stage:
        return VolcanoStage()
