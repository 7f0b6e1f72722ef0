"""Marks on pods become reports: one for each wish of the scheduler, and another when it changes its mind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.adapter import evictions
from cedana_sched.adapter.cluster import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled
from cedana_sched.adapter.evictions import NOT_ASKED, Family, MarkedEvictions, Report, alone
from cedana_sched.kube.errors import ApiError, ApiUnavailableError, ConflictError
from cedana_sched.kube.objects import PREEMPTION, Condition, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.watching import Mirror
from cedana_sched.model.objects import eviction_mark, names
from cedana_sched.model.objects.eviction_mark import EvictionMark, read_mark, written
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Verdict


def mark(*, since: float = 0.0, last: float = 0.0) -> str:
    """Times in seconds from now."""
    now = datetime.now(tz=UTC)
    times = ((now + timedelta(seconds=seconds)).isoformat(timespec="milliseconds") for seconds in (since, last))
    return written(EvictionMark("volcano", *times))


def read_mark_of(text: str) -> EvictionMark:
    found = read_mark({names.EVICTING: text})
    assert found is not None
    return found


def stale() -> str:
    return mark(since=-100, last=-100)


class Cluster:
    """Pods that a test changes, and what was patched."""

    def __init__(self) -> None:
        self.pods: Mirror[Pod] = Mirror(cast("Any", None))
        self.pods.synced.set()
        self.patched: list[tuple[str, Any]] = []
        self.refuses = 0
        self.refusal: ApiError = ConflictError("it has changed", remedy="look again")
        self.was_patched = asyncio.Event()
        self.at_patch: Callable[[], object] | None = None
        """Called once, while a mark is removed."""
        self.there: dict[str, Pod] = {}
        """By name: what the API server has, where the cache is behind."""
        self._version = 0
        access = ClusterAccess(
            cast("Any", self), cast("Any", None), self.pods, self, cast("Any", None), "-", cast("Any", None)
        )
        self.family: Callable[[Pod], Family] = alone
        self.evictions = MarkedEvictions("sched", access, concerns=_is_mine, family_of=self._family_of)

    def _family_of(self, pod: Pod) -> Family:
        return self.family(pod)

    def named(self, name: str | None) -> CheckpointPolicy:
        return CheckpointPolicy()

    async def patch(self, resource: object, name: str, namespace: str, patch: Mapping[str, Any]) -> None:
        self.patched.append((name, patch["metadata"]["annotations"]))
        self.was_patched.set()
        if self.at_patch is not None:
            self.at_patch()
            self.at_patch = None
        if self.refuses:
            self.refuses -= 1
            raise self.refusal

    async def find(self, resource: object, name: str, namespace: str, *, into: type[Pod]) -> Pod | None:
        return self.there.get(name) or self.pods.get(name, namespace)

    def put(self, name: str = "md-0", text: str | None = None, **fields: Any) -> Pod:
        """`fields`: uid, deleted, disrupted, phase, scheduler, of: annotations."""
        self._version += 1
        annotations = {names.ID: "md", names.INDEX: name[-1], **fields.get("of", {})}
        if text is not None:
            annotations[names.EVICTING] = text
        metadata = Metadata(
            name=name,
            namespace="bio",
            uid=fields.get("uid", f"uid-{name}"),
            resource_version=str(self._version),
            annotations=annotations,
            deletion_timestamp="2026-05-01T12:00:00Z" if fields.get("deleted") else None,
        )
        spec = PodSpec(node_name="n1", scheduler_name=fields.get("scheduler", "mine"))
        disrupted = Condition("DisruptionTarget", "True", PREEMPTION)
        conditions = (disrupted,) if fields.get("disrupted") else ()
        pod = Pod(metadata, spec, PodStatus(fields.get("phase", "Running"), conditions=conditions))
        self.pods._put(pod)
        return pod


def _is_mine(pod: Pod) -> bool:
    return pod.spec.scheduler_name == "mine"


@asynccontextmanager
async def followed(cluster: Cluster) -> AsyncIterator[asyncio.Queue[Report]]:
    """What is reported."""
    heard: asyncio.Queue[Report] = asyncio.Queue()
    reading = asyncio.Event()

    async def read() -> None:
        async with aclosing(cluster.evictions.reports()) as reports:  # type: ignore[type-var]  # it is a generator
            reading.set()
            async for report in reports:
                heard.put_nowait(report)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in (read(), cluster.evictions.run())]
        await reading.wait()
        await asyncio.sleep(0)
        yield heard
        for task in tasks:
            task.cancel()


async def preempted(heard: asyncio.Queue[Report]) -> Preempted:
    async with asyncio.timeout(10):
        report = await heard.get()
    assert isinstance(report, Preempted)
    return report


async def cancelled(heard: asyncio.Queue[Report]) -> str:
    async with asyncio.timeout(10):
        report = await heard.get()
    assert isinstance(report, PreemptionCancelled)
    assert report.why == NOT_ASKED
    return report.signal_uid


async def _pending(cluster: Cluster) -> AsyncIterator[Preempted]:
    """What a reader is told first."""
    async with aclosing(cluster.evictions.reports()) as reports:  # type: ignore[type-var]  # it is a generator
        report = await anext(reports)
        assert isinstance(report, Preempted)
        yield report


async def nothing(heard: asyncio.Queue[Report]) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard.empty()


async def test_a_mark_is_told_once_however_often_it_is_refreshed() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        begun = mark()
        cluster.put()
        cluster.put(text=begun)
        signal = (await preempted(heard)).signal
        assert [(one.workload.uid, str(one.identity.id), one.gang) for one in signal.victims] == [
            ("uid-md-0", "md", None)
        ]
        assert (signal.adapter, signal.reason, signal.held) == ("sched", "PreemptionByScheduler", None)
        cluster.put(text=begun)
        cluster.put(text=begun, phase="Running")
        await nothing(heard)


async def test_what_is_pending_is_told_again_under_the_same_uid() -> None:
    before, after, begun = Cluster(), Cluster(), mark()
    before.put(text=begun)
    after.put(text=begun)
    async with followed(before) as heard, followed(after) as again:
        assert (await preempted(heard)).signal.uid == (await preempted(again)).signal.uid


@pytest.mark.parametrize(
    "fields", [{"scheduler": "other"}, {"phase": "Pending"}, {"deleted": True}, {"of": {names.ID: "no name"}}]
)
async def test_what_is_not_evicted_or_cannot_be_saved_is_not_told(fields: dict[str, Any]) -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark(), **fields)
        cluster.put("md-1", text="nonsense")
        cluster.put("md-2", text=stale())
        await nothing(heard)


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
            assert cluster.patched == [("md-0", {names.EVICTING: None})] * 2, "its mark goes first"
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
            async with asyncio.timeout(10):
                await cluster.was_patched.wait()
            await nothing(heard)
        cluster.put(text=written(msgspec.structs.replace(read_mark_of(begun), last=read_mark_of(mark()).last)))
        assert not await cluster.evictions.released(Release(signal.uid, {"uid-md-0": Verdict.COMMITTED}))
        await nothing(heard)
        assert len(cluster.patched) == 1


@pytest.mark.parametrize("asks", [False, True], ids=["stale", "refreshed"])
async def test_where_marks_cannot_be_removed_the_api_server_is_read(*, asks: bool) -> None:
    cluster = Cluster()
    cluster.refuses, cluster.refusal = 100, ApiUnavailableError("failed calling webhook")
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        signal = (await preempted(heard)).signal
        behind = cluster.put(text=stale())
        if asks:
            annotations = {**behind.metadata.annotations, names.EVICTING: mark()}
            metadata = msgspec.structs.replace(behind.metadata, annotations=annotations)
            cluster.there["md-0"] = msgspec.structs.replace(behind, metadata=metadata)
            async with asyncio.timeout(10):
                await cluster.was_patched.wait()
            await nothing(heard)
        else:
            assert await cancelled(heard) == signal.uid


async def test_who_is_evicted_is_not_taken_back() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        signal = (await preempted(heard)).signal
        release = Release(signal.uid, {"uid-md-0": Verdict.COMMITTED})
        assert not await cluster.evictions.released(release), "the scheduler itself takes it"
        cluster.put(text=stale(), deleted=True)
        await nothing(heard)
        cluster.put(text=mark(), uid="uid-of-the-next", deleted=False)
        assert (await preempted(heard)).signal.victims[0].workload.uid == "uid-of-the-next"


async def test_who_was_committed_after_it_was_taken_back_is_spared() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put()
        await cluster.evictions.released(Release("earlier", {"uid-md-0": Verdict.LET_GO}))
        await cluster.evictions.released(Release("earlier", {"uid-md-9": Verdict.COMMITTED}))
        await nothing(heard)
        await cluster.evictions.released(Release("earlier", {"uid-md-0": Verdict.COMMITTED}))
        assert await cancelled(heard) == "earlier"


async def test_who_is_evicted_again_is_not_spared_by_the_release_before() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        signal = (await preempted(heard)).signal
        await cluster.evictions.released(Release("earlier", {"uid-md-0": Verdict.COMMITTED}))
        await nothing(heard)
        assert cluster.patched == []
        assert [one.signal.uid async for one in _pending(cluster)] == [signal.uid]


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
        assert not await cluster.evictions.released(Release(signal.uid, verdicts))
        assert await cancelled(heard) == signal.uid
        assert (await preempted(heard)).signal.uid != signal.uid


async def test_who_is_marked_and_unmarked_again_and_again_is_taken_up_so_often_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever may write to the pod can do that; each time would be two objects, and a freeze."""
    cluster = Cluster()
    async with followed(cluster) as heard:
        for number in range(evictions.ANEW_AT_MOST):
            cluster.put(text=mark(since=number / 100))
            signal = (await preempted(heard)).signal
            cluster.put()
            assert await cancelled(heard) == signal.uid
        cluster.put(text=mark(since=0.5))
        await nothing(heard)
        monkeypatch.setattr(evictions, "ANEW_SECONDS", 0.0)
        last = mark(since=0.5)
        cluster.put(text=last)
        assert (await preempted(heard)).signal.uid == f"uid-md-0@{read_mark_of(last).since}"


async def test_an_eviction_that_went_past_the_webhook_is_told_with_its_end() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(deleted=True)
        await nothing(heard)
        cluster.put(deleted=True, disrupted=True)
        signal = (await preempted(heard)).signal
        assert signal.not_after == datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp()
        cluster.put(deleted=True, disrupted=True)
        await nothing(heard)
    async with followed(cluster) as again:
        assert (await preempted(again)).signal.uid == signal.uid


async def test_an_eviction_that_was_released_is_not_told_as_a_deletion() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        begun = mark()
        cluster.put(text=begun)
        await preempted(heard)
        cluster.put(text=begun, deleted=True, disrupted=True)
        cluster.put(text=begun, deleted=True, disrupted=True)
        await nothing(heard)


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
        verdicts = {"uid-md-0": Verdict.COMMITTED, "uid-md-1": Verdict.COMMITTED, "uid-md-2": Verdict.LET_GO}
        await cluster.evictions.released(Release(signal.uid, verdicts))
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
