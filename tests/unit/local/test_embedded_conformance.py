"""The engine's own adapter keeps the contract."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from tests.unit.local.embedded_stage import EmbeddedStage


class TestEmbeddedConformance(AdapterConformance):
    @pytest.fixture
    def stage(self) -> Stage:
        return EmbeddedStage()
