"""Toy's adapter as it were if nobody else told of starts and ends: for the tests that pods do without."""

# mypy: allow-subclassing-any

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched.adapter.contract import Ended, Report, Starting
from cedana_sched.adapter.protected_pods import identity_of, workload_of
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.model.objects import names
from tests.unit.adapter.conformance import toy_page

toy = toy_page.modules()
ToyAdapter: Any = toy["toy_adapter"].ToyAdapter
ToyStage: Any = toy["toy_stage"].ToyStage


class StartingToyAdapter(ToyAdapter):
    """Watches the pods as well."""

    async def reports(self) -> AsyncIterator[Report]:
        await self._cluster.pods.synced.wait()
        queue: asyncio.Queue[Report] = asyncio.Queue()

        def tell(before: Pod | None, now: Pod | None) -> None:
            pod = now or before
            if pod is not None:
                queue.put_nowait(self.told_of(pod, is_gone=now is None))

        async def pass_on() -> None:
            async for report in super(StartingToyAdapter, self).reports():
                queue.put_nowait(report)

        self._cluster.pods.subscribe(tell)
        for pod in self.pods_at_first():
            tell(None, pod)
        passing = asyncio.create_task(pass_on())
        try:
            while True:
                yield await queue.get()
        finally:
            passing.cancel()
            self._cluster.pods.unsubscribe(tell)

    def pods_at_first(self) -> tuple[Pod, ...]:
        """Of which it may have been told nothing."""
        return tuple(self._cluster.pods)

    def told_of(self, pod: Pod, *, is_gone: bool) -> Report:
        if is_gone or pod.finished:
            return Ended(pod.metadata.uid, "it is gone")
        policy = self._cluster.policies.policy_named(pod.metadata.annotations.get(names.POLICY), pod.metadata.namespace)
        return Starting(workload_of(pod), identity_of(pod), policy)


class StartingToyStage(ToyStage):
    adapter_class: ClassVar = StartingToyAdapter
    lacks: ClassVar[dict[SchedulerCapability, str]] = {}

    async def bind_workload(self) -> RunningWorkload:
        (placed,) = await self.start()
        self.change_pod(placed, {"status": {"phase": "Pending"}})
        return placed  # type: ignore[no-any-return]  # the page is known at run time only
