"""A watch leaves out what is of a namespace that is not served, and a mirror can be looked at that way."""

from __future__ import annotations

import asyncio
from typing import Any

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import PODS, Resource
from cedana_sched.kube.response_decoding import Unreadable
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from tests.unit.kube.moody_api_server import MoodyApiServer

SERVED = ServedNamespaces(frozenset({"kube-system"}))


def _pod(name: str, namespace: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {"nodeName": "n1"}}


def _unreadable(name: str, namespace: str) -> Object:
    return {**_pod(name, namespace), "spec": {"nodeName": 7}}


def test_what_has_no_namespace_is_served() -> None:
    assert SERVED.includes("bio")
    assert SERVED.includes("")
    assert not SERVED.includes("kube-system")
    assert EVERYWHERE.includes("kube-system")
    assert SERVED.objection("bio") is None
    assert SERVED.objection("kube-system") == "namespace kube-system is excluded (excludedNamespaces)"


async def test_a_watch_tells_nothing_of_an_excluded_namespace() -> None:
    server, left = MoodyApiServer(), list[str]()

    def unreadable(_: Resource, one: Unreadable) -> None:
        left.append(f"{one.metadata.namespace}/{one.metadata.name}")

    for namespace in ("bio", "kube-system"):
        server.put(PODS, _pod("listed", namespace))
        server.put(PODS, _unreadable("odd", namespace))
    async with server.serving() as api, asyncio.TaskGroup() as group, asyncio.timeout(60):
        informer = Informer(Watch(api, PODS, Pod, within=SERVED), unreadable)
        seen: asyncio.Queue[Any] = asyncio.Queue()
        informer.subscribe(lambda before, now: seen.put_nowait(now))
        running = group.create_task(informer.run())
        assert (await seen.get()).metadata.name == "listed"
        await server.until(lambda: server.watching.total() == 1)
        for namespace in ("kube-system", "bio"):
            server.put(PODS, _unreadable("odd", namespace))
            server.put(PODS, _pod("listed", namespace, changed="yes"))
            server.put(PODS, _pod("new", namespace))
        assert (await seen.get()).metadata.labels == {}, "only labels that somebody reads are kept"
        assert (await seen.get()).metadata.name == "new"
        running.cancel()
    assert {(pod.metadata.namespace, pod.metadata.name) for pod in informer} == {("bio", "listed"), ("bio", "new")}
    assert set(left) == {"bio/odd"}


async def test_a_part_of_a_mirror_shows_what_is_served_as_it_changes() -> None:
    server, told = MoodyApiServer(), list[tuple[Any, Any]]()
    for namespace in ("bio", "kube-system"):
        server.put(PODS, _pod("listed", namespace))
    async with server.serving() as api, asyncio.TaskGroup() as group, asyncio.timeout(60):
        whole = Informer(Watch(api, PODS, Pod))
        part = whole.view_of_namespaces(SERVED)
        part.subscribe(lambda before, now: told.append((before and before.metadata.uid, now and now.metadata.uid)))
        running = group.create_task(whole.run())
        await part.synced.wait()
        later = whole.view_of_namespaces(SERVED)
        assert (len(whole), len(part), len(later)) == (2, 1, 1)
        running.cancel()
    (listed,) = part
    whole._drop(listed)
    (other,) = whole
    whole._drop(other)
    assert len(part) == len(later) == 0
    assert told == [(None, listed.metadata.uid), (listed.metadata.uid, None)]
