"""The Kubernetes adapter keeps the contract."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.conformance import AdapterConformance, Stage
from tests.unit.adapters.kubernetes.kubernetes_stage import KubernetesStage


class TestKubernetesConformance(AdapterConformance):
    @pytest.fixture
    def stage(self) -> Stage:
        return KubernetesStage()
