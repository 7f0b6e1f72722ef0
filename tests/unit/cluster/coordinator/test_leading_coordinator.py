"""What a coordinator waits for before anybody may ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import pytest

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator import leading_coordinator
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.coordinator.core import NamespaceCorrected
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.resources import CHECKPOINTS, Resource
from cedana_sched.testing import FakeApi


class SlowToTellOfCheckpoints(FakeApi):
    """Nothing is there, and nothing happens; who mirrors Checkpoints waits until it is `told`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.told = asyncio.Event()

    async def list_each(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str] | None, *given: Any, **named: Any
    ) -> str:
        if resource == CHECKPOINTS and not query:
            self.asked.set()
            await self.told.wait()
        return await super().list_each(resource, namespace, query, *given, **named)


class Adapter:
    """Says when it runs."""

    name = "kept"
    runs = asyncio.Event()

    @classmethod
    def connect(cls, _: ClusterAccess) -> Self:
        cls.runs = asyncio.Event()
        return cls()

    async def run(self) -> None:
        self.runs.set()
        await asyncio.Event().wait()

    async def reports(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield


async def test_adapters_run_once_it_is_known_what_has_been_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading_coordinator, "load", lambda _: Adapter)
    server = SlowToTellOfCheckpoints()
    configuration = CoordinatorConfiguration(namespace="cedana-system", adapters=("kept",))
    leads = LeadingCoordinator(server, configuration, "me")

    async def lead() -> None:
        async with leads.run_coordinator():
            await asyncio.Event().wait()

    leading = asyncio.create_task(lead())
    try:
        async with asyncio.timeout(60):
            await server.asked.wait()
            for informer in (leads.pods, leads._policies):
                await informer.synced.wait()
            for _ in range(100):  # whoever could go on has gone on
                await asyncio.sleep(0)
            assert not Adapter.runs.is_set()
            server.told.set()
            await Adapter.runs.wait()
    finally:
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


def test_an_answer_that_is_not_believed_is_told_on_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ObjectEvent] = []
    monkeypatch.setattr(EventRecorder, "record_event", lambda _, event: told.append(event))
    leads = LeadingCoordinator(FakeApi(), CoordinatorConfiguration(namespace="cedana-system"), "me")
    leads._agents._on_answer_rejected(CHECKPOINTS, Metadata("md-1", "bio", "uid"), "it is of another snapshot")
    involved = CHECKPOINTS.reference("md-1", "bio", "uid")
    text = "The answer of its node is not accepted: it is of another snapshot"
    assert told == [ObjectEvent(involved, "AnswerRejected", text, warning=True)]


def test_what_the_objects_correct_is_corrected_in_the_records() -> None:
    leads = LeadingCoordinator(FakeApi(), CoordinatorConfiguration(namespace="cedana-system"), "me")
    leads._projection._on_namespace_corrected("record", "namespace")
    assert leads.coordinator._queue.get_nowait() == NamespaceCorrected("record", "namespace")
