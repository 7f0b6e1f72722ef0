"""Who is nominated for a node asks again, as long as nobody leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from cedana_sched.adapter.conformance.stage import running_beside, yield_to_loop
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.objects import names
from cedana_sched.testing import FakeApi
from cedana_sched_volcano import nomination_removal
from cedana_sched_volcano.nomination_removal import NominationRemover
from cedana_sched_volcano.objects import SCHEDULER_NAME

ENDING = "2040-01-01T00:00:00Z"


def _pod(name: str, *, node: str = "", nominated: str = "", scheduler: str = SCHEDULER_NAME, **metadata: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "bio", **metadata},
        "spec": {"schedulerName": scheduler, "nodeName": node},
        "status": {"phase": "Running" if node else "Pending", "nominatedNodeName": nominated},
    }


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApi]:
    monkeypatch.setattr(nomination_removal, "PATIENCE_SECONDS", 0.0)
    made = FakeApi()
    pods = Informer(Watch(made, PODS, Pod, labels=f"{names.PROTECTED}=true"))
    async with running_beside(pods.run(), NominationRemover(made, pods).run()):
        await yield_to_loop()
        yield made


def _protected(api: FakeApi, name: str, node: str, **metadata: Any) -> None:
    api.put(PODS, _pod(name, node=node, labels={names.PROTECTED: "true"}, **metadata))


def _nominated(api: FakeApi, name: str) -> str:
    stored = api.stored(PODS, name, "bio")
    assert stored is not None
    return str(stored["status"].get("nominatedNodeName", ""))


async def test_who_waits_for_nobody_that_goes_may_ask_again(api: FakeApi) -> None:
    _protected(api, "victim", "here")
    api.put(PODS, _pod("urgent", nominated="here"))
    async with asyncio.timeout(60):
        await api.until(lambda: not _nominated(api, "urgent"))
        api.merge(PODS, "urgent", "bio", {"status": {"nominatedNodeName": "here"}})  # it has asked, in vain again
        await api.until(lambda: not _nominated(api, "urgent"))


async def test_once_somebody_leaves_the_node_the_note_stands(api: FakeApi) -> None:
    _protected(api, "victim", "here")
    api.put(PODS, _pod("stranger", node="here", scheduler="other", deletionTimestamp=ENDING))
    api.put(PODS, _pod("urgent", nominated="here"))
    await yield_to_loop(500)
    assert _nominated(api, "urgent") == "here"
    api.remove(PODS, "stranger", "bio")  # and the place was not enough
    async with asyncio.timeout(60):
        await api.until(lambda: not _nominated(api, "urgent"))


@pytest.fixture
def looked(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """What the API server was asked to list."""
    asked: list[Mapping[str, str]] = []
    list_all = api.list_all

    async def counted(resource: Any, namespace: Any = None, query: Any = None, *, into: Any) -> Any:
        asked.append(query)
        return await list_all(resource, namespace, query, into=into)

    monkeypatch.setattr(api, "list_all", counted)
    return asked


async def test_that_a_victim_of_ours_leaves_is_known_without_asking(
    api: FakeApi, looked: list[Mapping[str, str]]
) -> None:
    _protected(api, "victim", "here", deletionTimestamp=ENDING)
    api.put(PODS, _pod("urgent", nominated="here"))
    await yield_to_loop(500)
    assert _nominated(api, "urgent") == "here"
    assert looked == []


async def test_a_gang_that_waits_for_one_node_is_looked_at_together(
    api: FakeApi, looked: list[Mapping[str, str]]
) -> None:
    _protected(api, "victim", "here")
    members = [f"urgent-{number}" for number in range(30)]
    for name in members:
        api.put(PODS, _pod(name, nominated="here"))
    async with asyncio.timeout(60):
        await api.until(lambda: not any(_nominated(api, name) for name in members))
    assert len(looked) < 10
    assert {query["resourceVersion"] for query in looked} == {"0"}, "by memory, as every kubelet does"


async def test_others_are_left_alone(api: FakeApi) -> None:
    _protected(api, "victim", "here")
    api.put(PODS, _pod("elsewhere", nominated="there"))
    api.put(PODS, _pod("of-another-scheduler", nominated="here", scheduler="default-scheduler"))
    api.put(PODS, _pod("runs", node="here", nominated="here"))
    await yield_to_loop(500)
    assert _nominated(api, "elsewhere") == "there"
    assert _nominated(api, "of-another-scheduler") == _nominated(api, "runs") == "here"
