"""The test class that an adapter's author subclasses."""

from __future__ import annotations

from cedana_sched.adapter import registry
from cedana_sched.adapter.conformance.cancellations import Cancellations
from cedana_sched.adapter.conformance.findings import NonConformanceError, expect
from cedana_sched.adapter.conformance.gangs import Gangs
from cedana_sched.adapter.conformance.holds import Holds
from cedana_sched.adapter.conformance.restarts import Restarts
from cedana_sched.adapter.conformance.signals import Signals
from cedana_sched.adapter.conformance.stage import Stage
from cedana_sched.adapter.conformance.starts import Starts
from cedana_sched.adapter.contract import Adapter
from cedana_sched.model.errors import CedanaSchedError


class AdapterConformance(Signals, Holds, Cancellations, Restarts, Gangs, Starts):
    """All conformance tests. The subclass defines a fixture `stage`; pytest collects it by the name `Test...`.

    Without `asyncio_mode = "auto"` in pytest's configuration, mark the subclass with `pytest.mark.asyncio`.
    """

    async def test_it_is_found_by_its_name(self, stage: Stage) -> None:
        async with stage.adapter() as adapter:
            expect(isinstance(adapter, Adapter), "it lacks a member of `Adapter` in cedana_sched/adapter/contract.py")
            name = type(adapter).name
            try:
                found = registry.load(name)
            except CedanaSchedError as error:
                raise NonConformanceError(str(error)) from error
            expect(found is type(adapter), f"the entry point {name!r} is {found.__qualname__}, which is not under test")
