"""A scheduler that changes its mind: its preemption is taken back, and only then."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from cedana_sched.adapter import marked_evictions
from cedana_sched.model.objects import eviction_mark, names
from cedana_sched.model.objects.eviction_mark import serialized_mark
from cedana_sched.model.preemption import Release, Verdict
from tests.unit.adapter.marked_cluster import (
    Cluster,
    cancelled,
    followed,
    mark,
    nothing,
    pending,
    preempted,
    read_mark_of,
    stale,
)


async def test_a_scheduler_that_asks_no_more_has_changed_its_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.refuses = 1
    async with followed(cluster) as heard:
        begun = mark()
        cluster.put(text=begun)
        signal = (await preempted(heard)).signal
        with monkeypatch.context() as patch:
            patch.setattr(eviction_mark, "STALE_SECONDS", 0.3)
            cluster.put(text=begun)
            assert await cancelled(heard) == signal.uid
            assert cluster.patched == [("md-0", {names.EVICTION_REQUESTED: None})] * 2, "its mark goes first"
        cluster.put(text=mark())
        assert (await preempted(heard)).signal.uid != signal.uid, "asked for again, it is another preemption"


async def test_who_is_asked_for_on_is_not_taken_back_by_a_cache_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that was refreshed keeps its beginning: to go on by it would be what was taken back."""
    cluster = Cluster()
    cluster.refuses = 1
    async with followed(cluster) as heard:
        begun = mark()
        cluster.put(text=begun)
        signal = (await preempted(heard)).signal
        with monkeypatch.context() as patch:
            patch.setattr(eviction_mark, "STALE_SECONDS", 0.3)
            cluster.put(text=begun)
            async with asyncio.timeout(60):
                await cluster.was_patched.wait()
            await nothing(heard)
        cluster.put(text=serialized_mark(msgspec.structs.replace(read_mark_of(begun), last=read_mark_of(mark()).last)))
        assert not await cluster.evictions.on_released(Release(signal.uid, {"uid-md-0": Verdict.COMMITTED}))
        await nothing(heard)
        assert len(cluster.patched) == 1


async def test_who_is_evicted_is_not_taken_back() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        signal = (await preempted(heard)).signal
        release = Release(signal.uid, {"uid-md-0": Verdict.COMMITTED})
        assert not await cluster.evictions.on_released(release), "the scheduler itself takes it"
        cluster.put(text=stale(), deleted=True)
        await nothing(heard)
        cluster.put(text=mark(), uid="uid-of-the-next", deleted=False)
        assert (await preempted(heard)).signal.victims[0].workload.uid == "uid-of-the-next"


async def test_who_was_committed_after_it_was_taken_back_is_spared() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put()
        await cluster.evictions.on_released(Release("earlier", {"uid-md-0": Verdict.EVICT}))
        await cluster.evictions.on_released(Release("earlier", {"uid-md-9": Verdict.COMMITTED}))
        await nothing(heard)
        await cluster.evictions.on_released(Release("earlier", {"uid-md-0": Verdict.COMMITTED}))
        assert await cancelled(heard) == "earlier"


async def test_who_is_evicted_again_is_not_spared_by_the_release_before() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        signal = (await preempted(heard)).signal
        await cluster.evictions.on_released(Release("earlier", {"uid-md-0": Verdict.COMMITTED}))
        await nothing(heard)
        assert cluster.patched == []
        assert [one.signal.uid async for one in pending(cluster)] == [signal.uid]


async def test_who_is_marked_and_unmarked_again_and_again_is_taken_up_so_often_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever may write to the pod can do that; each time would be two objects, and a freeze."""
    cluster = Cluster()
    async with followed(cluster) as heard:
        for number in range(marked_evictions.ANEW_AT_MOST):
            cluster.put(text=mark(since=number / 100))
            signal = (await preempted(heard)).signal
            cluster.put()
            assert await cancelled(heard) == signal.uid
        cluster.put(text=mark(since=0.5))
        await nothing(heard)
        monkeypatch.setattr(marked_evictions, "ANEW_SECONDS", 0.0)
        last = mark(since=0.5)
        cluster.put(text=last)
        assert (await preempted(heard)).signal.uid == f"uid-md-0@{read_mark_of(last).since}"
