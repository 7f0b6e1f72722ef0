"""Evictions through the API: one signal each, within their budget, performed by the release."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cedana_sched.adapter.conformance import RunningWorkload
from cedana_sched.adapter.conformance.coordinator import Coordinator
from cedana_sched.adapter.contract import PreemptionCancelled
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, serialized_mark
from cedana_sched.model.preemption import Release, Signal, Verdict
from cedana_sched_kubernetes import budget_lag, saved_pod_eviction
from cedana_sched_kubernetes.deletions import DELETED
from cedana_sched_kubernetes.objects import DISRUPTION_BUDGETS, EVICTION_API, TAINT
from tests.unit.adapters.kubernetes.kubernetes_stage import NAMESPACE, KubernetesStage

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def mark(
    stage: KubernetesStage, pod: RunningWorkload, *, ago: float = 0, cause: str = EVICTION_API, budget: str = ""
) -> None:
    at = (datetime.now(tz=UTC) - timedelta(seconds=ago)).isoformat(timespec="milliseconds")
    text = serialized_mark(EvictionMark("admin", at, at, cause, budget))
    stage.change_pod(pod, {"metadata": {"annotations": {names.DISRUPTION_REQUESTED: text}}})


def put_budget(stage: KubernetesStage, allowed: int) -> None:
    status = {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 1, "observedGeneration": 1}
    metadata = {"name": "md", "namespace": NAMESPACE, "generation": 1}
    stage.api.put(DISRUPTION_BUDGETS, {"metadata": metadata, "spec": {}, "status": status})


def committed(signal: Signal) -> Release:
    return Release(signal.uid, {victim.workload.uid: Verdict.COMMITTED for victim in signal.victims})


def evictions(stage: KubernetesStage) -> list[str]:
    return [write.name for write in stage.api.traffic.writes if write.verb == "evict"]


async def test_release_evicts_the_pod_though_its_client_never_called_again() -> None:
    stage = KubernetesStage()
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            (pod,) = await stage.start()
            mark(stage, pod, ago=5)
            signal = await coordinator.wait_for_signal(pod)
            mark(stage, pod, ago=1)  # another client's, later
            await stage.wait_until_reported()
            await adapter.release(committed(signal))
    assert signal.reason == EVICTION_API
    assert evictions(stage) == [pod.workload.name]
    assert coordinator.cancellations() == set()


async def test_release_after_a_restart_evicts_the_pod() -> None:
    stage = KubernetesStage()
    (pod,) = await stage.start()
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            mark(stage, pod)
            signal = await coordinator.wait_for_signal(pod)
    async with stage.adapter() as adapter:
        await adapter.release(committed(signal))
    assert evictions(stage) == [pod.workload.name]


async def test_request_that_is_not_repeated_before_it_is_seen_is_no_signal() -> None:
    stage = KubernetesStage()
    (pod,) = await stage.start()
    mark(stage, pod, ago=60)
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            await stage.wait_until_reported()
    assert coordinator.preemptions() == set()


async def test_pod_that_a_taint_evicts_is_deleted_with_the_condition_that_says_so() -> None:
    stage = KubernetesStage()
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            (pod,) = await stage.start()
            stage.change_pod(pod, {"status": READY})
            mark(stage, pod, cause=TAINT)
            signal = await coordinator.wait_for_signal(pod)
            await adapter.release(committed(signal))
    assert await stage.is_evicted(pod)
    writes = [(write.verb, write.body) for write in stage.api.traffic.writes if write.resource.plural == "pods"]
    assert [verb for verb, _ in writes] == ["patch", "delete"]
    (condition,) = (one["value"] for one in writes[0][1] if one["op"] == "add")
    assert (condition["type"], condition["status"], condition["reason"]) == ("DisruptionTarget", "True", TAINT)


async def take_budget(
    stage: KubernetesStage, coordinator: Coordinator
) -> tuple[RunningWorkload, RunningWorkload, Signal]:
    """Two ready pods of one budget are requested; the signal is the first one's."""
    first, second = await stage.start(members=2)
    for pod in (first, second):
        stage.change_pod(pod, {"status": READY})
        mark(stage, pod, budget="md")
    return first, second, await coordinator.wait_for_signal(first)


async def test_of_the_pods_of_a_budget_only_as_many_are_reported_as_it_allows() -> None:
    stage = KubernetesStage()
    put_budget(stage, 1)
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            _, second, signal = await take_budget(stage, coordinator)
            await stage.wait_until_reported()
            assert coordinator.preemptions() == {signal.uid}

            await adapter.release(committed(signal))
            put_budget(stage, 0)
            await stage.wait_until_reported()
            assert coordinator.preemptions() == {signal.uid}, "its replacement is not ready"

            put_budget(stage, 1)
            await coordinator.wait_for_signal(second)


async def test_pod_that_is_frozen_for_so_long_that_it_fails_its_probes_still_takes_its_budget() -> None:
    """Its readiness shows before the status of the budget."""
    stage = KubernetesStage()
    put_budget(stage, 1)
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            first, second, signal = await take_budget(stage, coordinator)
            stage.change_pod(first, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
            await stage.wait_until_reported()
            mark(stage, second, budget="md")
            await stage.wait_until_reported()
            assert coordinator.preemptions() == {signal.uid}

            put_budget(stage, 0)
            mark(stage, second, budget="md")
            await stage.wait_until_reported()
            assert coordinator.preemptions() == {signal.uid}

            put_budget(stage, 1)  # another pod became ready
            await coordinator.wait_for_signal(second)


async def test_pod_that_was_not_ready_before_its_eviction_takes_its_budget_once() -> None:
    """The budget has ceased to count it before, so that its status does not change when the pod ends."""
    stage = KubernetesStage()
    put_budget(stage, 1)
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            unready, other = await stage.start(members=2)
            stage.change_pod(other, {"status": READY})
            mark(stage, unready, budget="md")
            await adapter.release(committed(await coordinator.wait_for_signal(unready)))
            await stage.wait_until_reported()
            assert await stage.is_evicted(unready)
            mark(stage, other, budget="md")
            await coordinator.wait_for_signal(other)


async def test_status_of_a_budget_that_is_seen_before_the_end_of_its_pod_blocks_no_other_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = KubernetesStage()
    put_budget(stage, 1)
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            first, second, signal = await take_budget(stage, coordinator)
            put_budget(stage, 1)  # it allows one more than the first
            stage.remove_pod(first)
            await stage.wait_until_reported()
            mark(stage, second, ago=2, budget="md")
            await stage.wait_until_reported()
            assert coordinator.preemptions() == {signal.uid}, "no status may have followed yet"
            monkeypatch.setattr(budget_lag, "LONGEST_SECONDS", 0.0)
            mark(stage, second, ago=1, budget="md")
            await coordinator.wait_for_signal(second)


async def test_saved_pod_that_its_budget_keeps_runs_on_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = KubernetesStage()
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            (pod,) = await stage.start()
            mark(stage, pod, budget="md")
            signal = await coordinator.wait_for_signal(pod)
            stage.api.refused_evictions.add(pod.workload.name)
            with pytest.raises(ApiUnavailableError):
                await adapter.release(committed(signal))
            assert coordinator.cancellations() == set()

            monkeypatch.setattr(saved_pod_eviction, "PATIENCE_SECONDS", 0.0)
            await adapter.release(committed(signal))
            await stage.wait_until_reported()
    (cancelled,) = (one for one in coordinator.received if isinstance(one, PreemptionCancelled))
    assert cancelled.signal_uid == signal.uid
    assert "refuses its eviction" in cancelled.why
    assert not await stage.is_evicted(pod)


async def test_pod_that_runs_on_after_its_release_is_saved_when_it_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor would repeat what the pod has done since."""
    monkeypatch.setattr(saved_pod_eviction, "PATIENCE_SECONDS", 0.0)
    stage = KubernetesStage()
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            (pod,) = await stage.start()
            mark(stage, pod, budget="md")
            signal = await coordinator.wait_for_signal(pod)
            stage.api.refused_evictions.add(pod.workload.name)
            await adapter.release(committed(signal))
            await coordinator.wait_for_cancellation(signal)
            await stage.preempt_with_deadline(pod)
            later = await coordinator.wait_for_signal(pod, other_than={signal.uid})
    assert later.reason == DELETED


async def test_pod_whose_snapshot_failed_is_not_evicted_where_its_policy_keeps_it() -> None:
    stage = KubernetesStage()
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            (pod,) = await stage.start()
            mark(stage, pod)
            signal = await coordinator.wait_for_signal(pod)
            await adapter.release(Release(signal.uid, {pod.uid: Verdict.KEEP_RUNNING}))
    assert evictions(stage) == []
