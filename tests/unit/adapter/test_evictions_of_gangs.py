"""Marks on members of gangs: one preemption of all of them."""

from __future__ import annotations

import msgspec
import pytest

from cedana_sched.adapter.marked_evictions import Family
from cedana_sched.model.objects import eviction_mark
from cedana_sched.model.preemption import Release, Verdict
from tests.unit.adapter.marked_cluster import Cluster, cancelled, followed, mark, nothing, preempted, stale


async def test_a_gang_that_is_evicted_anew_is_not_deleted_by_the_release_before() -> None:
    cluster = Cluster()
    cluster.family = lambda _: Family("group-1", tuple(cluster.pods), gang="group-1")
    async with followed(cluster) as heard:
        cluster.put("md-1")
        cluster.put("md-0", text=mark())
        signal = (await preempted(heard)).signal
        cluster.put("md-0", text=stale())
        cluster.at_patch = lambda: cluster.put("md-0", text=mark(since=1.0))
        verdicts = {"uid-md-0": Verdict.COMMITTED, "uid-md-1": Verdict.COMMITTED}
        assert not await cluster.evictions.on_released(Release(signal.uid, verdicts))
        assert await cancelled(heard) == signal.uid
        assert (await preempted(heard)).signal.uid != signal.uid


async def test_a_family_is_one_preemption() -> None:
    cluster = Cluster()
    cluster.family = lambda _: Family("group-1", tuple(cluster.pods), gang="group-1")
    async with followed(cluster) as heard:
        cluster.put("md-0")
        cluster.put("md-1")
        cluster.put("md-1", text=mark())
        signal = (await preempted(heard)).signal
        assert [(one.workload.name, one.gang) for one in signal.victims] == [("md-0", "group-1"), ("md-1", "group-1")]
        cluster.put("md-0", text=mark())
        await nothing(heard)
        cluster.put("md-1", deleted=True)
        cluster.put("md-0", text=stale())
        await nothing(heard)
        assert cluster.patched == [], "it goes whole"


async def test_who_goes_alone_is_not_told_with_the_rest_of_its_gang_as_well() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        for name in ("md-0", "md-1", "md-2"):
            cluster.put(name)
        cluster.put("md-0", text=mark(since=-3))
        first = (await preempted(heard)).signal
        cluster.family = lambda _: Family("group-1", tuple(cluster.pods), gang="group-1")
        begun = mark(since=-1)
        cluster.put("md-1", text=begun)
        rest = (await preempted(heard)).signal
        told = [[one.workload.name for one in signal.victims] for signal in (first, rest)]
        assert told == [["md-0"], ["md-1", "md-2"]]
        assert msgspec.json.decode(begun)["since"] in rest.uid


@pytest.mark.parametrize("asked", ["md-0", "md-1"])
async def test_a_gang_is_taken_back_also_when_a_member_of_it_has_finished(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    cluster = Cluster()
    cluster.family = lambda _: Family("group-1", tuple(cluster.pods), gang="group-1")
    async with followed(cluster) as heard:
        for name in ("md-0", "md-1", "md-2"):
            cluster.put(name)
        begun = mark()
        cluster.put(asked, text=begun)
        signal = (await preempted(heard)).signal
        monkeypatch.setattr(eviction_mark, "STALE_SECONDS", 0.3)
        cluster.put("md-1", text=begun if asked == "md-1" else None, phase="Succeeded")
        assert await cancelled(heard) == signal.uid
        await nothing(heard)


async def test_what_is_left_of_a_gang_that_was_not_saved_is_told_when_it_is_asked_for() -> None:
    cluster = Cluster()
    cluster.family = lambda _: Family("group-1", tuple(cluster.pods), gang="group-1")
    async with followed(cluster) as heard:
        for name in ("md-0", "md-1", "md-2"):
            cluster.put(name)
        cluster.put("md-0", text=mark())
        signal = (await preempted(heard)).signal
        verdicts = {"uid-md-0": Verdict.COMMITTED, "uid-md-1": Verdict.COMMITTED, "uid-md-2": Verdict.EVICT}
        await cluster.evictions.on_released(Release(signal.uid, verdicts))
        cluster.put("md-0", deleted=True)
        cluster.put("md-2", text=mark())
        await nothing(heard)  # md-1 is still going
        cluster.put("md-1", deleted=True)
        cluster.put("md-2", text=stale())
        await nothing(heard)  # those that go are not spared
        cluster.put("md-2", text=mark(since=1.0))
        again = (await preempted(heard)).signal
        assert again.uid != signal.uid
        assert "uid-md-2" in {one.workload.uid for one in again.victims}
