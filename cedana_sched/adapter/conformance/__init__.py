"""Whether an adapter keeps the contract: tests that its author subclasses, for a fake scheduler and for the real one.

    class TestToy(AdapterConformance):
        @pytest.fixture
        def stage(self) -> Stage:
            return ToyStage()

The tests know no scheduler; the author's `Stage` does. They need pytest and pytest-asyncio, the product does not.
"""

from cedana_sched.adapter.conformance.findings import NonConformanceError
from cedana_sched.adapter.conformance.stage import Power, RunningWorkload, Stage
from cedana_sched.adapter.conformance.suite import AdapterConformance

__all__ = ["AdapterConformance", "NonConformanceError", "Power", "RunningWorkload", "Stage"]
