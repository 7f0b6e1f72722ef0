"""The API server in memory answers as a real one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import (
    AbsentError,
    AlreadyExistsError,
    ApiUnavailableError,
    ConflictError,
    RefusedByServerError,
)
from cedana_sched.kube.resources import CONFIG_MAPS, NODES, PODS, Resource
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.testing import FakeApi

POD: Object = {"metadata": {"name": "one", "namespace": "bio"}, "spec": {"nodeName": "n1"}}


async def created(api: FakeApi, **metadata: Any) -> Object:
    return await api.create(PODS, {**POD, "metadata": {**POD["metadata"], **metadata}}, into=dict)


@asynccontextmanager
async def watched(api: FakeApi, resource: Resource = PODS, **query: str) -> AsyncIterator[list[tuple[str, Object]]]:
    """The events of a watch, as soon as the event loop has turned."""
    events: list[tuple[str, Object]] = []

    async def follow() -> None:
        async with aclosing(api.stream(resource, None, query, silent_seconds=60)) as lines:
            async for line in lines:
                event = msgspec.json.decode(line)
                events.append((event["type"], event["object"]))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await turns()
        yield events
        await turns()
        task.cancel()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_object_is_created_once_without_its_status() -> None:
    api = FakeApi()
    made = await api.create(PODS, {**POD, "status": {"phase": "Running"}}, into=dict)
    assert "status" not in made
    assert made["metadata"]["uid"]
    with pytest.raises(AlreadyExistsError):
        await created(api)
    await api.delete(PODS, "one", "bio")
    assert (await created(api))["metadata"]["uid"] != made["metadata"]["uid"]


@pytest.mark.parametrize("wanted", [{"resourceVersion": "1"}, {"uid": "another"}])
async def test_a_write_whose_precondition_fails_changes_nothing(wanted: Mapping[str, str]) -> None:
    api = FakeApi()
    made = await created(api)
    with pytest.raises(ConflictError):
        await api.update(PODS, {**POD, "metadata": {**POD["metadata"], **wanted}, "spec": {}}, into=dict)
    with pytest.raises(ConflictError):
        await api.patch(PODS, "one", "bio", {"metadata": wanted, "spec": None})
    assert api.stored(PODS, "one", "bio") == made
    with pytest.raises(ConflictError):
        await api.delete(PODS, "one", "bio", uid="another")


async def test_what_is_absent_is_not_written() -> None:
    api = FakeApi()
    with pytest.raises(AbsentError):
        await api.patch(PODS, "one", "bio", {})
    with pytest.raises(AbsentError):
        await api.update(PODS, POD, into=dict)
    assert await api.find(PODS, "one", "bio", into=dict) is None
    await api.delete(PODS, "one", "bio")
    assert api.traffic.writes == []


async def test_a_status_is_written_by_its_subresource_and_nothing_else_is() -> None:
    api = FakeApi()
    await created(api)
    both = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}}
    await api.patch(PODS, "one", "bio", both, subresource="status")
    assert "labels" not in api.stored(PODS, "one", "bio")["metadata"]
    await api.patch(PODS, "one", "bio", {**both, "status": {"phase": "Failed"}})
    await api.update(PODS, {**POD, "spec": {}}, into=dict)
    stored = api.stored(PODS, "one", "bio")
    assert (stored["spec"], stored["status"]) == ({}, {"phase": "Running"})


async def test_a_write_that_changes_nothing_takes_no_version_and_is_no_event() -> None:
    api = FakeApi()
    version = (await created(api))["metadata"]["resourceVersion"]
    async with watched(api, resourceVersion=version) as events:
        await api.patch(PODS, "one", "bio", {"spec": {"nodeName": "n1"}})
    assert events == []
    assert api.stored(PODS, "one", "bio")["metadata"]["resourceVersion"] == version


async def test_json_patches_test_what_they_change() -> None:
    api = FakeApi()
    made = await created(api, finalizers=["a", "b/c"])
    seen = {"op": "test", "path": "/metadata/uid", "value": made["metadata"]["uid"]}
    change = {"op": "remove", "path": "/metadata/finalizers/0"}
    with pytest.raises(RefusedByServerError) as refused:
        await api.patch(PODS, "one", "bio", [{**seen, "value": "another"}, change])
    assert refused.value.status == 422
    await api.patch(PODS, "one", "bio", [seen, change, {"op": "add", "path": "/metadata/labels", "value": {}}])
    metadata = api.stored(PODS, "one", "bio")["metadata"]
    assert (metadata["finalizers"], metadata["labels"]) == (["b/c"], {})


async def test_what_has_finalizers_is_gone_with_the_last_of_them() -> None:
    api = FakeApi()
    await created(api, finalizers=["a"])
    async with watched(api) as events:
        await api.delete(PODS, "one", "bio")
        with pytest.raises(RefusedByServerError):
            await api.patch(PODS, "one", "bio", {"metadata": {"finalizers": ["a", "b"]}})
        await api.patch(PODS, "one", "bio", {"metadata": {"finalizers": []}})
    assert [(kind, "deletionTimestamp" in one["metadata"]) for kind, one in events] == [
        ("ADDED", False), ("MODIFIED", True), ("MODIFIED", True), ("DELETED", True),
    ]  # fmt: skip
    assert api.objects == {}


async def test_a_config_map_has_a_limit() -> None:
    api = FakeApi()
    body = {"metadata": {"name": "one", "namespace": "bio"}, "data": {"a": "x" * (1 << 20)}}
    await api.create(CONFIG_MAPS, body, into=dict)
    with pytest.raises(RefusedByServerError):
        await api.patch(CONFIG_MAPS, "one", "bio", {"data": {"b": "x"}})


SELECTORS = {"a": True, "a=b": True, "a==b": True, "a!=c": True, "c!=d": True, "!c": True, "a in (b,c)": True,
             "a notin (b, c)": False, "c": False, "a=c": False, "a,!c,a in (x,b)": True, "a=b,c": False}  # fmt: skip


@pytest.mark.parametrize(("selector", "is_listed"), SELECTORS.items())
async def test_label_selectors(selector: str, is_listed: bool) -> None:
    api = FakeApi()
    await created(api, labels={"a": "b"})
    found, _ = await api.list_all(PODS, "bio", {"labelSelector": selector}, into=PartialObject)
    assert bool(found) is is_listed
    assert await api.list_all(PODS, "chem", {"labelSelector": selector}, into=PartialObject) == ((), "2")


@pytest.mark.parametrize(
    ("selector", "is_listed"),
    [("spec.nodeName=n1", True), ("spec.nodeName!=n1", False), ("status.phase!=Failed,metadata.name=one", True)],
)
async def test_field_selectors(selector: str, is_listed: bool) -> None:
    api = FakeApi()
    await created(api)
    found, _ = await api.list_all(PODS, None, {"fieldSelector": selector}, into=PartialObject)
    assert bool(found) is is_listed


async def test_a_watch_goes_on_from_its_list_and_sees_what_leaves_its_selector_deleted() -> None:
    api = FakeApi()
    await created(api, labels={"a": "b"})
    _, version = await api.list_all(PODS, into=dict)
    await created(api, name="two")
    await api.patch(PODS, "one", "bio", {"spec": {"nodeName": "n2"}})
    async with watched(api, resourceVersion=version, labelSelector="a=b") as events:
        await api.patch(PODS, "one", "bio", {"metadata": {"labels": {"a": "c"}}})
        await api.patch(PODS, "two", "bio", {"metadata": {"labels": {"a": "b"}}})
    assert [(kind, one["metadata"]["name"]) for kind, one in events] == [
        ("MODIFIED", "one"), ("DELETED", "one"), ("ADDED", "two"),
    ]  # fmt: skip


async def test_a_version_that_was_compacted_away_has_expired_and_bookmarks_keep_one_from_it() -> None:
    api = FakeApi()
    await created(api)
    async with watched(api, NODES, resourceVersion="2", allowWatchBookmarks="true") as events:
        await created(api, name="two")
        api.watches.bookmark()
    [(kind, bookmark)] = events
    assert kind == "BOOKMARK"
    api.watches.compact()
    async with watched(api, resourceVersion="2") as expired:
        pass
    assert [(kind, one["code"]) for kind, one in expired] == [("ERROR", 410)]
    async with watched(api, resourceVersion=bookmark["metadata"]["resourceVersion"]) as events:
        await api.delete(PODS, "one", "bio")
    assert [kind for kind, _ in events] == ["DELETED"]


async def test_a_cache_stays_complete_though_its_watches_end_and_expire() -> None:
    api = FakeApi()
    pods = Informer(Watch(api, PODS, PartialObject))
    running = asyncio.create_task(pods.run())
    async with asyncio.timeout(60):
        await pods.synced.wait()
        for number in range(3):
            await created(api, name=f"p{number}")
            api.watches.end()
            api.watches.compact()
            api.put(PODS, {"metadata": {"name": f"q{number}", "namespace": "bio"}})
        while len(pods) < 6:  # noqa: ASYNC110 - it lists again after a pause
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])


async def test_requests_fail_before_or_after_they_are_done() -> None:
    api = FakeApi()
    api.traffic.fails, api.traffic.answers_lost = {1}, {2}
    for number in range(2):
        with pytest.raises(ApiUnavailableError):
            await created(api)
        assert len(api.objects) == number
    api.traffic.refusing[PODS] = 403
    with pytest.raises(RefusedByServerError):
        await api.delete(PODS, "one", "bio")
    api.traffic.down = True
    with pytest.raises(ApiUnavailableError):
        await api.get(PODS, "one", "bio", into=dict)
    assert [write[:3] for write in api.traffic.writes] == [("create", PODS, "one")]
