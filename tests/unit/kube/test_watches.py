"""Watches over real HTTP: lists in pages, changes, bookmarks, broken connections, forgotten versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec
import pytest
import structlog
from aiohttp import web

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import JOBS, PODS, Resource
from cedana_sched.kube.watching import Changed, Deleted, Informer, Listed, Watch
from tests.pauses import shorten_pauses
from tests.unit.kube.moody_api_server import Mood, MoodyApiServer
from tests.unit.kube.served_api import served


def _pod(name: str, version: int, uid: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "bio", "uid": uid or name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodeName": "node-1"}}


class _Server:
    """An API server that says what the test tells it to."""

    def __init__(self) -> None:
        self.lists: list[tuple[list[dict[str, Any]] | None, str]] = []
        self.watches: asyncio.Queue[Callable[[web.StreamResponse], Any]] = asyncio.Queue()
        self.asked: list[dict[str, str]] = []
        self.accepted: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.asked.append(query)
        self.accepted.append(request.headers["Accept"])
        if "watch" not in query:
            items, more = self.lists.pop(0)
            return web.json_response({"metadata": {"resourceVersion": "100", "continue": more}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionResetError):
            await (await self.watches.get())(response)
        return response


def _lines(*events: tuple[str, dict[str, Any]]) -> Callable[[web.StreamResponse], Any]:
    async def write(response: web.StreamResponse) -> None:
        for kind, body in events:
            await response.write(msgspec.json.encode({"type": kind, "object": body}) + b"\n")

    return write


async def _broken(response: web.StreamResponse) -> None:
    await response.write(b'{"type": "ADDED", "obj')
    assert response._req is not None
    assert response._req.transport is not None
    response._req.transport.abort()


def _serving(server: _Server) -> AbstractAsyncContextManager[Api]:
    return served({"/api/v1/pods": server.answer})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> _Server:
    shorten_pauses(monkeypatch)
    return _Server()


async def _take(watch: Watch[Pod], count: int) -> list[Any]:
    taken: list[Any] = []
    async with asyncio.timeout(60):
        changes = watch.changes()
        async for change in changes:
            taken.append(change)
            if len(taken) == count:
                await changes.aclose()
                break
    return taken


async def test_list_of_several_pages_comes_first_then_changes(server: _Server) -> None:
    server.lists = [([_pod("a", 1)], "more"), ([_pod("b", 2)], "")]
    server.watches.put_nowait(_lines(("ADDED", _pod("c", 101)), ("DELETED", _pod("a", 102))))
    async with _serving(server) as api:
        listed, added, deleted = await _take(Watch(api, PODS, Pod, labels="x=y"), 3)
    assert isinstance(listed, Listed)
    assert [pod.metadata.name for pod in listed.objects] == ["a", "b"]
    assert isinstance(added, Changed)
    assert added.object.metadata.name == "c"
    assert isinstance(deleted, Deleted)
    assert server.asked[1]["continue"] == "more"
    assert server.asked[2]["resourceVersion"] == "100"
    assert {query["labelSelector"] for query in server.asked} == {"x=y"}


@pytest.mark.parametrize("only_metadata", [False, True])
async def test_metadata_alone_is_asked_for_where_nothing_else_matters(server: _Server, *, only_metadata: bool) -> None:
    server.lists = [([_pod("a", 1)], "")]
    server.watches.put_nowait(_lines(("ADDED", _pod("c", 101))))
    async with _serving(server) as api:
        await _take(Watch(api, PODS, Pod, only_metadata=only_metadata), 2)
    partial = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
    wanted = [partial.format("List"), partial.format("")] if only_metadata else ["application/json"] * 2
    assert server.accepted == wanted


async def test_a_list_without_objects_is_empty(server: _Server) -> None:
    """An API server has `"items": null` in one of metadata alone."""
    server.lists = [(None, "")]
    server.watches.put_nowait(_lines(("ADDED", _pod("c", 101))))
    async with _serving(server) as api:
        listed, added = await _take(Watch(api, PODS, Pod, only_metadata=True), 2)
    assert isinstance(listed, Listed)
    assert listed.objects == ()
    assert isinstance(added, Changed)


async def test_watch_that_ends_or_breaks_goes_on_where_it_was(server: _Server) -> None:
    server.lists = [([], "")]
    server.watches.put_nowait(_lines(("ADDED", _pod("a", 101)), ("BOOKMARK", _pod("", 150))))
    server.watches.put_nowait(_broken)
    server.watches.put_nowait(_lines(("MODIFIED", _pod("a", 160))))
    async with _serving(server) as api:
        changes = await _take(Watch(api, PODS, Pod), 3)
    assert [type(change).__name__ for change in changes] == ["Listed", "Changed", "Changed"]
    assert [query["resourceVersion"] for query in server.asked[1:]] == ["100", "150", "150"]


async def test_forgotten_version_lists_again(server: _Server) -> None:
    server.lists = [([_pod("a", 1)], ""), ([_pod("b", 2)], "")]
    server.watches.put_nowait(_lines(("ERROR", {"code": 410, "message": "too old", "reason": "Expired"})))
    async with _serving(server) as api:
        first, second = await _take(Watch(api, PODS, Pod), 2)
    assert [pod.metadata.name for pod in first.objects] == ["a"]
    assert [pod.metadata.name for pod in second.objects] == ["b"]


async def test_mirror_tells_what_a_new_list_changed_and_who_was_made_anew(server: _Server) -> None:
    server.lists = [
        ([_pod("stays", 1), _pod("goes", 2), _pod("again", 3, "first")], ""),
        ([_pod("stays", 1), _pod("comes", 5), _pod("again", 6, "second")], ""),
    ]
    server.watches.put_nowait(_lines(("ERROR", {"code": 410})))
    told: list[tuple[str, str]] = []
    done = asyncio.Event()

    def heard(before: Pod | None, now: Pod | None) -> None:
        told.append((before.metadata.uid if before else "", now.metadata.uid if now else ""))
        if now is not None and now.metadata.uid == "second":
            done.set()

    async with _serving(server) as api:
        informer = Informer(Watch(api, PODS, Pod))
        informer.subscribe(heard)
        task = asyncio.create_task(informer.run())
        async with asyncio.timeout(60):
            await done.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert told == [
        ("", "stays"), ("", "goes"), ("", "first"),
        ("goes", ""), ("", "comes"), ("first", ""), ("", "second"),
    ]  # fmt: skip
    assert informer.synced.is_set()
    found = informer.get("again", "bio")
    assert found is not None
    assert found.metadata.uid == "second"
    assert len(informer) == 3


async def test_objects_that_cannot_be_read_cost_no_other_and_stay_what_they_were(server: _Server) -> None:
    def spoilt(name: str, version: int) -> dict[str, Any]:
        return {**_pod(name, version), "spec": {"nodeName": 7}}

    server.lists = [([_pod("well", 1), spoilt("ill", 2), _pod("falls", 3)], "")] * 2  # the second one reads each alone
    server.watches.put_nowait(_lines(("MODIFIED", spoilt("falls", 101)), ("MODIFIED", _pod("well", 102, "again"))))
    named: list[tuple[str, str]] = []
    seen = asyncio.Event()
    async with _serving(server) as api:
        informer = Informer(Watch(api, PODS, Pod), lambda _, one: named.append((one.metadata.name, one.problem)))
        informer.subscribe(lambda _, now: seen.set() if now is not None and now.metadata.uid == "again" else None)
        task = asyncio.create_task(informer.run())
        async with asyncio.timeout(60):
            await seen.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [name for name, _ in named] == ["ill", "falls"]
    assert "$.spec.nodeName" in named[0][1]
    assert sorted(pod.metadata.name for pod in informer) == ["falls", "well"]


async def test_a_subscriber_that_fails_costs_no_other(server: _Server) -> None:
    server.lists = [([_pod("a", 1), _pod("b", 2)], "")]
    told: list[str] = []

    def fails(_: Pod | None, now: Pod | None) -> None:
        raise LookupError("a defect")

    async with _serving(server) as api:
        informer = Informer(Watch(api, PODS, Pod))
        informer.subscribe(fails)
        informer.subscribe(lambda _, now: told.append(now.metadata.name if now else ""))
        task = asyncio.create_task(informer.run())
        with structlog.testing.capture_logs() as logs:
            async with asyncio.timeout(60):
                await informer.synced.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert told == ["a", "b"]
    assert [one["event"] for one in logs if one["log_level"] == "error"] == ["subscriber failed"] * 2


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("not-served", "batch/v1 Job is not served"),
        (403, "lacks verbs [list, watch] on resources [jobs] of apiGroups ['batch']"),
        (401, "its token is read anew"),
        ("page", "it begins with '<html>"),
    ],
)
async def test_why_nothing_is_listed_is_said_with_its_remedy(mood: Mood, said: str) -> None:
    moody = MoodyApiServer()
    moody.fall_into(mood)
    async with moody.serving() as api:
        informer = Informer(Watch(api, JOBS, Pod))
        task = asyncio.create_task(informer.run())
        await moody.until(lambda: moody.bad["jobs"] >= 2)
        assert not task.done()
        assert said in (informer.unsynced_reason or "")
        moody.fall_into(None)
        async with asyncio.timeout(60):
            await informer.synced.wait()
        assert informer.unsynced_reason is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_kind_that_nobody_has_installed_ends_a_watch_at_once(server: _Server) -> None:
    foreign = Resource("example.com/v1", "Queue", "queues")
    async with _serving(server) as api:
        with pytest.raises(AbsentError):
            await Informer(Watch(api, foreign, Pod)).run()
