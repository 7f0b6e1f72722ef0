"""Kueue's evictions that no webhook has held: the pods wait in their preStop hooks, and are saved from there."""

from __future__ import annotations

import asyncio
import time
from itertools import permutations
from typing import Any

import msgspec
import pytest

from cedana_sched.adapter.conformance import RunningWorkload
from cedana_sched.adapter.contract import Preempted
from cedana_sched.kube.builtin_kinds import PREEMPTION, Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import JOBS, PODS, Resource
from cedana_sched.model.objects import names
from cedana_sched.model.objects.node_interruption import left_out_mark
from cedana_sched.model.preemption import CONFIRMATION_SECONDS, Signal
from cedana_sched_kueue.managed_objects import ManagedObject
from cedana_sched_kueue.objects import Workload
from cedana_sched_kueue.preemptions import KueueReport
from tests.unit.adapters.kueue.kueue_builders import (
    EVICTED_AT,
    JOB_UID,
    NAMESPACE,
    World,
    admitted,
    changed,
    deleted,
    job,
    pod,
    preempted,
)
from tests.unit.adapters.kueue.kueue_stage import KueueStage

UID = f"{JOB_UID}@{EVICTED_AT}"


def signal_of(reports: tuple[KueueReport, ...]) -> Signal:
    (report,) = reports
    assert isinstance(report, Preempted)
    return report.signal


def test_pods_of_a_job_that_was_suspended_unheld_are_saved_while_they_wait() -> None:
    world = World()
    world.put(job(suspend=True), preempted(), deleted(pod(0), ago=1, now=world.now), pod(1))
    signal = signal_of(world.review())
    assert signal.uid == UID, "the one that it would have had"
    assert [victim.workload.name for victim in signal.victims] == ["md-0", "md-1"], "the whole gang, deleted or not yet"
    assert signal.not_after == world.now - 1 + 630
    assert world.review() == ()


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_in_whatever_order_the_watches_tell_it_is_one_signal_of_all_pods(order: tuple[int, ...]) -> None:
    world = World()
    world.put(job(), admitted(), pod(0), pod(1))
    news: list[tuple[ManagedObject | Workload | Pod, ...]] = [
        (preempted(),),
        (job(suspend=True),),
        (deleted(pod(0), ago=1, now=world.now), deleted(pod(1), ago=1, now=world.now)),
    ]
    told: list[KueueReport] = []
    for step in order:
        world.put(*news[step])
        told += world.review()
    (report,) = told
    assert isinstance(report, Preempted)
    assert [victim.workload.name for victim in report.signal.victims] == ["md-0", "md-1"]


def test_what_was_told_before_the_suspension_is_not_told_again() -> None:
    world = World()
    world.put(job(), preempted(), pod(0))
    assert signal_of(world.review()).uid == UID
    world.put(job(suspend=True), deleted(pod(0), ago=1, now=world.now))
    assert world.review() == ()
    assert world.review() == ()


def test_a_coordinator_that_leads_anew_tells_it_with_the_same_uid() -> None:
    world = World()
    world.put(job(suspend=True), preempted(), deleted(pod(0), ago=1, now=world.now))
    first = signal_of(world.review())
    world.restart()
    assert signal_of(world.review()) == first


def test_pods_that_were_on_their_way_back_when_it_was_let_go_are_saved_while_they_wait() -> None:
    """Nothing was to be saved then. They have run since, for as long as their deletion took."""
    world = World()
    world.put(job(), preempted(), pod(0, phase="Pending"), pod(1, phase="Pending"))
    assert world.review() == ()
    needed, name = world.preemptions.annotation_correction(JOB_UID)
    assert needed, "it is let go"
    released = {names.RELEASED_HOLD: name or ""}
    world.put(changed(job(suspend=True), annotations=released), pod(0), pod(1))
    assert world.review() == ()
    world.put(deleted(pod(0), ago=1, now=world.now), deleted(pod(1), ago=1, now=world.now))
    signal = signal_of(world.review())
    assert signal.uid == UID
    assert [victim.workload.name for victim in signal.victims] == ["md-0", "md-1"]
    assert world.review() == ()
    world.restart()
    assert signal_of(world.review()) == signal, "also by who leads then"


def test_pods_restored_while_evicted_are_saved_by_the_successor_of_a_coordinator_that_died_meanwhile() -> None:
    """The work since the restore was lost: another replica leads 20 s later, and the pods waited for 15 s."""
    world = World()
    world.put(job(), preempted(), pod(0, phase="Pending"), pod(1, phase="Pending"))
    _, name = world.preemptions.annotation_correction(JOB_UID)
    released = changed(job(suspend=True), annotations={names.RELEASED_HOLD: name or ""})
    world.put(released, deleted(pod(0), ago=24, now=world.now), deleted(pod(1), ago=20, now=world.now))
    world.restart()
    signal = signal_of(world.review())
    assert [victim.workload.name for victim in signal.victims] == ["md-0", "md-1"]


def test_one_that_came_back_while_the_others_were_held_is_saved_while_it_waits() -> None:
    world = World()
    world.put(job(), preempted(), pod(0), pod(1, phase="Pending"))
    first = signal_of(world.review())
    assert [victim.workload.name for victim in first.victims] == ["md-0"]
    world.preemptions.on_released(first.uid)
    world.put(job(suspend=True), *(deleted(pod(index), ago=1, now=world.now) for index in (0, 1)))
    later = signal_of(world.review())
    assert [victim.workload.name for victim in later.victims] == ["md-1"]
    assert later.uid != first.uid
    assert world.review() == ()
    assert world.review() == (), "each pod is told once"


def test_one_that_came_back_is_saved_by_who_leads_after_the_others_were_let_go() -> None:
    """Told by the uid of the eviction, it would be answered with the hold that is over, and go at once."""
    world = World()
    world.put(job(), preempted(), pod(0), pod(1, phase="Pending"))
    first = signal_of(world.review())
    world.restart()
    world.preemptions.record_earlier_signal(f"{JOB_UID}@2026-11-21T14:00:00Z", frozenset({pod(1).metadata.uid}))
    world.preemptions.record_earlier_signal(first.uid, frozenset({pod(0).metadata.uid}))
    world.preemptions.record_earlier_signal(f"{JOB_UID}@2026-11-21T13:00:00Z", frozenset({pod(1).metadata.uid}))
    world.put(job(suspend=True), *(deleted(pod(index), ago=1, now=world.now) for index in (0, 1)))
    later = signal_of(world.review())
    assert [victim.workload.name for victim in later.victims] == ["md-1"]
    assert later.uid != first.uid


def test_an_eviction_that_was_told_later_is_over_when_the_job_runs_again() -> None:
    """The Job's news may come before the Workload's."""
    world = World()
    world.put(job(), preempted(), pod(0), pod(1, phase="Pending"))
    first = signal_of(world.review())
    world.preemptions.on_released(first.uid)
    world.put(job(suspend=True), *(deleted(pod(index), ago=1, now=world.now) for index in (0, 1)))
    later = signal_of(world.review())
    world.preemptions.on_released(later.uid)
    world.put(job(), pod(2))
    assert world.review() == ()


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(deleted(pod(0), ago=CONFIRMATION_SECONDS, now=1000), id="its agent waits no more"),
        pytest.param(deleted(pod(0, phase="Succeeded"), ago=1, now=1000), id="it has ended"),
        pytest.param(pod(0), id="nobody has deleted it"),
    ],
)
def test_who_does_not_wait_is_not_frozen(one: Pod) -> None:
    world = World()
    world.put(job(suspend=True), preempted(), one)
    assert world.review() == ()


def test_a_person_who_suspends_a_job_evicts_nobody() -> None:
    world = World()
    world.put(job(suspend=True), admitted(), deleted(pod(0), ago=1, now=world.now))
    assert world.review() == ()


class Stage(KueueStage):
    """Kueue with no webhook: whatever it asks for goes through, and its Job's pods are deleted, and wait."""

    def _may_be_suspended(self, job: Object) -> bool:
        del job
        return True

    def remove_pod(self, workload: RunningWorkload) -> None:
        """As the API server does: it stays until its kubelet has ended it."""
        name = workload.workload.name
        stored = msgspec.convert(self.api.stored(PODS, name, NAMESPACE), Pod)
        metadata = msgspec.to_builtins(deleted(stored, ago=0, now=time.time()).metadata)
        self.api.merge(PODS, name, NAMESPACE, {"metadata": metadata})

    def is_let_go(self, workload: RunningWorkload) -> bool:
        return self.said_of(workload) == "true"

    def said_of(self, workload: RunningWorkload) -> str | None:
        """Return what the adapter says of a pod that Kueue does not evict."""
        stored = self.api.stored(PODS, workload.workload.name, NAMESPACE) or {}
        said: str | None = stored["metadata"]["annotations"].get(names.NOT_PREEMPTED)
        return said


async def test_who_is_evicted_unheld_is_reported_and_not_let_go() -> None:
    stage = Stage()
    (victim,) = await stage.start()
    async with stage.adapter() as adapter:
        reports = adapter.reports()
        await stage.preempt(victim)
        report = await asyncio.wait_for(anext(reports), 60)
        assert isinstance(report, Preempted)
        assert [one.workload.uid for one in report.signal.victims] == [victim.workload.uid]
        await stage.wait_until_reported()
        assert not stage.is_let_go(victim)


@pytest.mark.parametrize("by", ["the pod is deleted", "the Job is deleted", "a person suspends the Job"])
async def test_who_is_not_evicted_is_let_go_at_once(by: str) -> None:
    stage = Stage()
    (victim,) = await stage.start()
    job_name = victim.workload.name.rpartition("-")[0]
    async with stage.adapter():
        if by == "the Job is deleted":
            stage.api.remove(JOBS, job_name, NAMESPACE)
        elif by == "a person suspends the Job":
            stage.api.merge(JOBS, job_name, NAMESPACE, {"spec": {"suspend": True}})
        stage.remove_pod(victim)
        await asyncio.wait_for(stage.api.until(lambda: stage.is_let_go(victim)), 60)


async def test_who_is_not_evicted_is_handed_over_where_another_adapter_saves_deleted_pods() -> None:
    stage = Stage()
    stage.settings = {"handsOverDeletions": True}
    (victim,) = await stage.start()
    async with stage.adapter():
        stage.remove_pod(victim)
        await asyncio.wait_for(stage.api.until(lambda: stage.said_of(victim) == names.NOT_BY_SCHEDULER), 60)


async def test_who_has_outlived_a_shutdown_that_left_it_out_is_handed_over_too() -> None:
    stage = Stage()
    stage.settings = {"handsOverDeletions": True}
    (victim,) = await stage.start()
    marked = {"annotations": {names.NOT_PREEMPTED: left_out_mark("1")}}
    stage.api.merge(PODS, victim.workload.name, NAMESPACE, {"metadata": marked})
    async with stage.adapter():
        stage.remove_pod(victim)
        await asyncio.wait_for(stage.api.until(lambda: stage.said_of(victim) == names.NOT_BY_SCHEDULER), 60)


async def test_who_is_evicted_unheld_is_not_handed_over() -> None:
    stage = Stage()
    stage.settings = {"handsOverDeletions": True}
    (victim,) = await stage.start()
    async with stage.adapter() as adapter:
        reports = adapter.reports()
        await stage.preempt(victim)
        assert isinstance(await asyncio.wait_for(anext(reports), 60), Preempted)
        await stage.wait_until_reported()
        assert stage.said_of(victim) is None


async def test_a_deletion_that_comes_before_the_news_of_its_eviction_is_asked_about() -> None:
    """The watches of Jobs and Workloads may be behind that of pods: what is written now counts."""
    stage = Stage()
    (victim,) = await stage.start()
    async with stage.adapter():
        asked: list[str] = []

        async def get(resource: Resource, name: str, namespace: str | None = None, *, into: type[Any]) -> Any:
            asked.append(resource.kind)
            held = {"conditions": [{"type": "Evicted", "status": "True"}]}
            fresh = {"spec": {"suspend": True}} if resource == JOBS else {"status": held}
            body = {**(stage.api.stored(resource, name, namespace) or {}), **fresh}
            return msgspec.json.decode(msgspec.json.encode(body), type=into)

        stage.api.get = get  # type: ignore[method-assign]  # it is ahead of the watches
        stage.remove_pod(victim)
        await stage.wait_until_reported()
        assert asked == ["Job", "Workload"]
        assert not stage.is_let_go(victim)


async def test_a_pod_whose_node_another_scheduler_chose_waits_for_that_ones_word() -> None:
    stage = Stage()
    (victim,) = await stage.start()
    condition = {"type": "DisruptionTarget", "status": "True", "reason": PREEMPTION}
    async with stage.adapter():
        stage.change_pod(victim, {"spec": {"schedulerName": "volcano"}, "status": {"conditions": [condition]}})
        stage.remove_pod(victim)
        await stage.wait_until_reported()
        assert not stage.is_let_go(victim)
