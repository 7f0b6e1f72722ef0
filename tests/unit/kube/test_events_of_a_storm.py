"""Events in a storm: warnings are never lost, memory is bounded, and what is the same is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, cast

import pytest

from cedana_sched.kube import events
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError, RefusedByServerError
from cedana_sched.kube.events import COMPONENT, EventRecorder, ObjectEvent
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.response_decoding import Unreadable
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.path_segment_validation import LONGEST_OBJECT_NAME
from tests.pauses import shorten_pauses


class Slow:
    """Takes nothing before it is `open`; refuses as many writes as it is told to."""

    def __init__(self) -> None:
        self.open, self.changed = asyncio.Event(), asyncio.Event()
        self.refusals: list[Exception] = []
        self.written: list[dict[str, Any]] = []

    async def create(self, _: Any, body: dict[str, Any], *, into: Any) -> Any:
        await self.open.wait()
        if self.refusals:
            raise self.refusals.pop()
        self.written.append(body)
        self.changed.set()
        return into()

    async def patch(self, _: Any, name: str, namespace: str, patch: dict[str, Any]) -> None:
        await self.open.wait()
        next(one for one in self.written if one["metadata"]["name"] == name)["count"] = patch["count"]
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while sum(one["count"] for one in self.written) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def recording(api: Slow) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(cast("Api", api), COMPONENT)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def of(pod: int, *, warning: bool = False, namespace: str = "lab") -> ObjectEvent:
    return ObjectEvent(PODS.reference(f"p{pod}", namespace, f"u{pod}"), "Held", "it is held", warning=warning)


async def test_six_thousand_of_a_thousand_victims_are_all_written() -> None:
    api = Slow()
    async with recording(api) as recorder:
        for number in range(6_000):
            recorder.record_event(of(number))
        api.open.set()
        await api.until(6_000)
    assert len(api.written) == 6_000


async def test_of_too_many_the_normal_ones_go_and_every_warning_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT", 100)
    api = Slow()
    async with recording(api) as recorder:
        for number in range(1_000):
            recorder.record_event(of(number))
            recorder.record_event(of(number, warning=True, namespace=f"n{number % 3}"))
        assert len(recorder._normal) + len(recorder._warnings) <= 100 + 100 + 3
        api.open.set()
        await api.until(100 + 100 + 3)
    warnings = [one for one in api.written if one["type"] == "Warning"]
    joined = [one["message"].partition("(and ")[2].partition(" more")[0] for one in warnings]
    assert len(warnings) + sum(int(others) for others in joined if others) == 1_000
    assert len(warnings) == 103


async def test_a_storm_in_one_namespace_costs_others_neither_time_nor_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may cause as many as they like, such as by the condition `Checkpointable` of their pods."""
    monkeypatch.setattr(events, "KEPT", 200)
    api = Slow()
    async with recording(api) as recorder:
        for number in range(1_000):
            recorder.record_event(of(number, warning=True, namespace="storm"))
        recorder.record_event(of(1, warning=True))
        recorder.record_event(of(2, warning=True))
        api.open.set()
        await api.until(203)
    namespaces = [one["metadata"]["namespace"] for one in api.written]
    assert namespaces.index("lab") < 20
    assert [one["message"] for one in api.written if one["metadata"]["namespace"] == "lab"] == ["it is held"] * 2
    assert not recorder._warnings_of_namespace


async def test_a_warning_is_tried_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    api = Slow()
    api.open.set()
    api.refusals = [RefusedByServerError("no rights yet", status=403), ApiUnavailableError("starting")]
    async with recording(api) as recorder:
        recorder.record_event(of(1, warning=True))
        await api.until(1)
    assert [one["type"] for one in api.written] == ["Warning"]


async def test_texts_of_any_length_cost_no_more_than_an_event_shows() -> None:
    """Users write some of them: a pod's annotation, the name of its owner."""
    api = Slow()
    api.open.set()
    long = "\N{SNOWMAN}" * 300_000
    async with recording(api) as recorder:
        involved = {"kind": "Pod", "name": "P d" + long, "namespace": "a", "uid": "u"}
        recorder.record_event(ObjectEvent(involved, "Odd", long, warning=True))
        await api.until(1)
        assert max(len(text) for key in recorder._written for text in key) <= events.LONGEST_MESSAGE
    (written,) = api.written
    assert len(written["message"]) == events.LONGEST_MESSAGE
    assert written["metadata"]["name"].startswith("p-d")
    assert len(written["metadata"]["name"]) < LONGEST_OBJECT_NAME
    assert written["metadata"]["name"].isascii()


async def test_a_warning_that_can_never_be_taken_makes_room_for_others() -> None:
    api = Slow()
    api.open.set()
    api.refusals = [RefusedByServerError("no such reference", status=422)]
    async with recording(api) as recorder:
        recorder.record_event(of(1, warning=True))
        recorder.record_event(of(2, warning=True))
        await api.until(1)
        assert not recorder._warnings


async def test_the_same_told_again_is_counted() -> None:
    api = Slow()
    async with recording(api) as recorder:
        for _ in range(50):
            recorder.record_event(of(1, warning=True))
        api.open.set()
        await api.until(50)
        recorder.record_event(of(1, warning=True))
        await api.until(51)
    assert [one["count"] for one in api.written] == [51]


async def test_events_are_found_by_the_source_that_the_page_names() -> None:
    api = Slow()
    api.open.set()
    async with recording(api) as recorder:
        recorder.record_event(of(1))
        await api.until(1)
    (written,) = api.written
    assert written["source"] == {"component": "cedana-sched"}


@pytest.mark.parametrize("apart", [-600.0, 600.0])
async def test_event_is_as_old_as_the_objects_beside_it(monkeypatch: pytest.MonkeyPatch, apart: float) -> None:
    monkeypatch.setattr(SERVER_TIME, "_epoch", SERVER_TIME._epoch + apart)
    api = Slow()
    api.open.set()
    async with recording(api) as recorder:
        recorder.record_event(of(1))
        await api.until(1)
    (written,) = api.written
    for name in ("firstTimestamp", "lastTimestamp"):
        assert datetime.fromisoformat(written[name]).timestamp() == pytest.approx(time.time() + apart, abs=60)


async def test_what_cannot_be_read_is_told_on_it() -> None:
    api = Slow()
    api.open.set()
    problem = "Expected `str`, got `int` - at `$.spec.nodeName`"
    async with recording(api) as recorder:
        recorder.record_unreadable(PODS, Unreadable(Metadata("p", "lab", "u"), problem))
        await api.until(1)
    (written,) = api.written
    assert written["involvedObject"] == PODS.reference("p", "lab", "u")
    assert (written["type"], written["reason"]) == ("Warning", "Unreadable")
    assert problem in written["message"]
