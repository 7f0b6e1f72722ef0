"""Conformance tests of the contract, subclassed by an adapter's author for a fake scheduler and for the real one.

    class TestToy(AdapterConformance):
        @pytest.fixture
        def stage(self) -> Stage:
            return ToyStage()

The tests are scheduler-agnostic; the author's `Stage` drives the scheduler. The tests need pytest and pytest-asyncio;
the product does not.
"""

from cedana_sched.adapter.conformance.findings import NonConformanceError
from cedana_sched.adapter.conformance.stage import RunningWorkload, SchedulerCapability, Stage
from cedana_sched.adapter.conformance.suite import AdapterConformance

__all__ = ["AdapterConformance", "NonConformanceError", "RunningWorkload", "SchedulerCapability", "Stage"]
