"""The Kueue adapter keeps the contract."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from tests.unit.adapters.kueue.kueue_stage import JobSetStage, KueueStage, PodGroupStage


class TestKueueConformance(AdapterConformance):
    @pytest.fixture
    def stage(self) -> Stage:
        return KueueStage()


class TestKueueConformanceOfAKindThatOwnsJobs(AdapterConformance):
    @pytest.fixture
    def stage(self) -> Stage:
        return JobSetStage()


class TestKueueConformanceOfPodGroups(AdapterConformance):
    @pytest.fixture
    def stage(self) -> Stage:
        return PodGroupStage()
