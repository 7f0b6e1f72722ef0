"""Pods that cannot be written, by the webhook no more than by us: a stale mark is no proof that nobody asks.

Another webhook of pods may be away (`failurePolicy: Fail`), which is not called for the scheduler's writes of
pods/status. Whoever is taken back then would be evicted unsaved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cedana_sched.adapter import mark_removal
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report
from cedana_sched.adapter.marked_evictions import Family
from cedana_sched.coordinator.core import ReleaseHold
from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointSpec
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import read_mark, refreshed_mark, serialized_mark
from cedana_sched.model.preemption import Release, Verdict
from cedana_sched.model.records import CheckpointStep, HoldStep
from tests.unit.adapter.marked_cluster import Cluster, cancelled, followed, mark, nothing, preempted, stale
from tests.unit.coordinator.core.core_builders import Told
from tests.unit.webhooks.holds.test_pod_hold import NOW, POD_UID, SCHEDULER, Desk, eviction, hold

SHOWS_SECONDS = 0.3


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_removal, "SHOWS_SECONDS", SHOWS_SECONDS)


async def patched(cluster: Cluster, times: int) -> None:
    """Wait until so many removals were tried."""
    async with asyncio.timeout(60):
        while len(cluster.patched) < times:
            cluster.was_patched.clear()
            await cluster.was_patched.wait()


async def test_a_stale_mark_that_cannot_be_removed_takes_nothing_back() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        await preempted(heard)
        cluster.refuse()
        cluster.put(text=stale())
        await patched(cluster, 4)  # it is looked at again and again
        await nothing(heard)


def _without_a_mark(cluster: Cluster, pod: Pod) -> None:
    cluster.is_at(pod, None)


def _another_one(cluster: Cluster, pod: Pod) -> None:
    cluster.is_at(pod, stale(), uid="uid-of-the-next")


@pytest.mark.parametrize("become", [_without_a_mark, _another_one])
async def test_a_mark_that_the_api_server_does_not_have_is_no_more(become: Callable[[Cluster, Pod], None]) -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        signal = (await preempted(heard)).signal
        cluster.refuse()
        cluster.pods.unsubscribe(cluster.evictions._on_pod_change)  # it has not seen it yet
        behind = cluster.put(text=stale())
        become(cluster, behind)
        cluster.pods.subscribe(cluster.evictions._on_pod_change)
        cluster.evictions._on_pod_change(behind, behind)
        assert await cancelled(heard) == signal.uid


@pytest.mark.parametrize("fields", [{"text": "fresh"}, {"deleted": True}, {"disrupted": True}], ids=str)
async def test_who_is_asked_for_by_what_the_api_server_has_is_not_taken_back(fields: dict[str, Any]) -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        signal = (await preempted(heard)).signal
        cluster.refuse()
        await cluster.evictions.on_released(Release(signal.uid, {"uid-md-0": Verdict.COMMITTED}))
        await asyncio.sleep(SHOWS_SECONDS)
        text = mark() if fields.pop("text", None) else stale()
        cluster.is_at(cluster.put(text=mark()), text, **fields)
        cluster.put(text=stale())
        await patched(cluster, 1)
        await nothing(heard)


async def test_who_is_marked_anew_as_soon_as_pods_can_be_written_goes_on_as_the_same_preemption() -> None:
    """Our removal may be faster than the webhook, which writes when the scheduler asks."""
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        await preempted(heard)
        cluster.refuse()
        cluster.put(text=stale())
        await patched(cluster, 2)
        cluster.accept()
        cluster.at_patch = lambda: cluster.put(text=None)
        await patched(cluster, 3)
        await nothing(heard)
        cluster.put(text=mark(since=1.0))
        await asyncio.sleep(2 * SHOWS_SECONDS)
        await nothing(heard)


async def test_who_is_not_marked_anew_once_pods_can_be_written_is_taken_back() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        signal = (await preempted(heard)).signal
        cluster.refuse()
        cluster.put(text=stale())
        await patched(cluster, 2)
        cluster.accept()
        cluster.at_patch = lambda: cluster.put(text=None)
        assert await cancelled(heard) == signal.uid


async def test_who_does_not_go_although_it_was_released_is_spared() -> None:
    """Whoever is asked for would have gone by then, whatever its mark says."""
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark())
        signal = (await preempted(heard)).signal
        cluster.refuse()
        cluster.put(text=stale())
        await patched(cluster, 1)
        release = Release(signal.uid, {"uid-md-0": Verdict.COMMITTED})
        with pytest.raises(RetryableError):
            await cluster.evictions.on_released(release)
        await nothing(heard)
        assert await cancelled(heard) == signal.uid


async def test_a_gang_in_doubt_does_not_go_as_a_whole() -> None:
    cluster = Cluster()
    cluster.family = lambda _: Family("group-1", tuple(cluster.pods), gang="group-1")
    async with followed(cluster) as heard:
        cluster.put("md-1")
        cluster.put("md-0", text=mark())
        signal = (await preempted(heard)).signal
        cluster.refuse()
        cluster.put("md-0", text=stale())
        await patched(cluster, 1)
        release = Release(signal.uid, {"uid-md-0": Verdict.COMMITTED, "uid-md-1": Verdict.COMMITTED})
        with pytest.raises(RetryableError):
            await cluster.evictions.on_released(release)
        cluster.accept()
        with pytest.raises(RetryableError):
            await cluster.evictions.on_released(release)
        await nothing(heard)
        cluster.put("md-0", text=stale(), deleted=True)  # the scheduler has asked, and used the release
        assert await cluster.evictions.on_released(release)
        await nothing(heard)


async def test_a_new_coordinator_does_not_take_back_either() -> None:
    cluster = Cluster()
    cluster.refuse()
    async with followed(cluster) as heard:
        cluster.put(text=stale())
        release = Release("of-an-earlier-run", {"uid-md-0": Verdict.COMMITTED})
        with pytest.raises(RetryableError):
            await cluster.evictions.on_released(release)
        await nothing(heard)
        await asyncio.sleep(SHOWS_SECONDS)
        assert not await cluster.evictions.on_released(release)
        assert await cancelled(heard) == release.signal_uid, "nobody has taken it"


class Second:
    """The webhook, the adapter and the core over one pod, whose scheduler asks once a second."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.cluster = Cluster(now=lambda: self.desk.now)
        self.told = Told(now=NOW.timestamp())
        self.text: str | None = None

    def ask(self) -> str:
        """The scheduler's attempt, which is marked where pods can be written."""
        annotations = {names.EVICTION_REQUESTED: self.text} if self.text else {}
        answer = self.desk.ask(eviction(annotations=annotations))
        if not self.cluster.refuses and (new := refreshed_mark(read_mark(annotations), SCHEDULER, self.desk.now)):
            self.text = serialized_mark(new)
        self.cluster.put(text=self.text, uid=POD_UID)
        return answer.decision

    def hear(self, report: Report) -> None:
        """What the coordinator does, and shows the webhook."""
        self.told.report(report)
        if isinstance(report, Preempted):
            uid = report.signal.uid
            self.told.frozen(f"{uid}.{POD_UID}.1")
            self.desk.known.on_hold_change(None, hold(uid=uid, left=300))
            spec = CheckpointSpec(IdentitySpec("md"), PodRef(POD_UID, node_name="n1"), uid)
            self.desk.known.on_checkpoint_change(None, Checkpoint(Metadata(name=uid, namespace="lab"), spec))
            return
        assert isinstance(report, PreemptionCancelled)
        self.told.aborted(f"{report.signal_uid}.{POD_UID}.1")
        (release,) = (one.release for one in self.told.said if isinstance(one, ReleaseHold))
        over = hold(HoldStep.RELEASED, release.verdicts[POD_UID], uid=report.signal_uid, released=0)
        self.desk.known.on_hold_change(None, over)

    def wait(self) -> None:
        self.desk.wait(1)
        self.told.now += 1


async def test_whom_the_scheduler_asks_for_all_the_time_is_not_evicted_unsaved() -> None:
    """Pods cannot be written from the middle of its dump on."""
    second = Second()
    async with followed(second.cluster) as heard:
        for at in range(90):
            if at == 34:
                second.cluster.refuse()
            assert second.ask() in {"not-yet-held", "held"}, f"evicted unsaved after {at} s"
            for _ in range(20):
                await asyncio.sleep(0)
            while not heard.empty():
                second.hear(heard.get_nowait())
            second.wait()
    steps = [one.step for one in second.told.core.registry.checkpoints.values()]
    assert steps == [CheckpointStep.DUMPING]
