"""Deletions: a pod with a successor is reported, one that is deleted for good is said not to be preempted."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.conformance import RunningWorkload
from cedana_sched.adapter.conformance.coordinator import Coordinator
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import JOBS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import refreshed_mark, serialized_mark
from cedana_sched.model.policy import CheckpointPolicy, OnFinalDeletion
from cedana_sched.model.preemption import Release, Verdict
from cedana_sched_kubernetes import deletions
from cedana_sched_kubernetes.deletions import DELETED
from tests.unit.adapters.kubernetes.kubernetes_stage import HOOKED, NAMESPACE, KubernetesStage, owner


async def deleted(stage: KubernetesStage, pod: RunningWorkload) -> Coordinator:
    """What is reported of the pod's deletion."""
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            await stage.preempt_with_deadline(pod)
            await stage.wait_until_reported()
    return coordinator


def said_of(stage: KubernetesStage, pod: RunningWorkload) -> Object:
    found: Object = stage.pod_of(pod) or {}
    return found


def is_said_not_to_be_preempted(stage: KubernetesStage, pod: RunningWorkload) -> bool:
    return bool(said_of(stage, pod)["metadata"]["annotations"].get(names.NOT_PREEMPTED) == "true")


async def test_deleted_pod_of_a_job_is_reported_and_is_no_failure_of_the_job() -> None:
    stage = KubernetesStage()
    (pod,) = await stage.start()
    stage.change_pod(pod, {"status": {"conditions": []}})
    coordinator = await deleted(stage, pod)
    assert len(coordinator.preemptions()) == 1
    assert [one["reason"] for one in said_of(stage, pod)["status"]["conditions"]] == [DELETED]
    assert not is_said_not_to_be_preempted(stage, pod)


@pytest.mark.parametrize("save", [False, True])
async def test_pod_of_a_job_that_is_gone_is_reported_only_if_its_policy_says_so(
    save: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = KubernetesStage()
    (pod,) = await stage.start()
    stage.api.remove(JOBS, "md", NAMESPACE)
    if save:
        saving = CheckpointPolicy(on_final_deletion=OnFinalDeletion.SAVE)
        monkeypatch.setattr(stage, "policy_of_pod", lambda _: saving)
    coordinator = await deleted(stage, pod)
    assert len(coordinator.preemptions()) == int(save)
    assert is_said_not_to_be_preempted(stage, pod) is not save


@pytest.mark.parametrize("settings", [{"otherLabels": ["kueue.x-k8s.io/podset"]}, {"otherSchedulers": ["volcano"]}])
async def test_pods_of_other_adapters_are_left_to_them(settings: Object) -> None:
    stage = KubernetesStage()
    stage.settings = settings
    pod = stage.put_pod("md-0", labels={"kueue.x-k8s.io/podset": "main"}, scheduler="volcano", annotations=HOOKED)
    coordinator = await deleted(stage, pod)
    assert coordinator.preemptions() == set()
    assert not is_said_not_to_be_preempted(stage, pod)


@pytest.mark.parametrize("first", ["deleted", "handed over"])
async def test_deletion_that_another_adapter_hands_over_is_reported_once(first: str) -> None:
    stage = KubernetesStage()
    stage.settings = {"otherLabels": ["kueue.x-k8s.io/podset"]}
    labels = {"kueue.x-k8s.io/podset": "main"}
    pod = stage.put_pod("md-0", labels=labels, annotations=HOOKED, owner=owner())
    handed = {"metadata": {"annotations": {names.NOT_PREEMPTED: names.NOT_BY_SCHEDULER}}}
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            if first == "handed over":
                stage.change_pod(pod, handed)
            await stage.preempt_with_deadline(pod)
            await stage.wait_until_reported()
            assert len(coordinator.preemptions()) == int(first == "handed over")
            stage.change_pod(pod, handed)
            await stage.wait_until_reported()
            await stage.repeat_current_state()
            await stage.wait_until_reported()
            assert len(coordinator.preemptions()) == 1


async def test_handed_over_pod_that_is_deleted_for_good_is_let_go() -> None:
    stage = KubernetesStage()
    stage.settings = {"otherLabels": ["kueue.x-k8s.io/podset"]}
    handed = {**HOOKED, names.NOT_PREEMPTED: names.NOT_BY_SCHEDULER}
    pod = stage.put_pod("md-0", labels={"kueue.x-k8s.io/podset": "main"}, annotations=handed)
    coordinator = await deleted(stage, pod)
    assert coordinator.preemptions() == set()
    assert is_said_not_to_be_preempted(stage, pod)


async def test_deletion_that_follows_from_a_release_is_no_other_preemption() -> None:
    stage = KubernetesStage()
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            (pod,) = await stage.start()
            requested = refreshed_mark(None, "kube-scheduler", SERVER_TIME.now())
            assert requested is not None
            annotations = {names.EVICTION_REQUESTED: serialized_mark(requested)}
            stage.change_pod(pod, {"metadata": {"annotations": annotations}})
            signal = await coordinator.wait_for_signal(pod)
            await adapter.release(Release(signal.uid, {pod.uid: Verdict.COMMITTED}))
            await stage.preempt_with_deadline(pod)
            await stage.wait_until_reported()
    assert coordinator.preemptions() == {signal.uid}
    assert coordinator.cancellations() == set()
    assert not is_said_not_to_be_preempted(stage, pod)


async def test_program_that_ends_already_is_not_saved() -> None:
    """Its hook has waited for as long as an agent does, or it has none."""
    stage = KubernetesStage()
    (pod,) = await stage.start()
    bare = stage.put_pod("md-9", owner=owner())
    long_ago = {"deletionTimestamp": "2026-01-01T00:10:00Z", "deletionGracePeriodSeconds": 600}
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            stage.change_pod(pod, {"metadata": long_ago})
            await stage.preempt_with_deadline(bare)
            await stage.wait_until_reported()
    assert coordinator.preemptions() == set()


async def test_pod_that_was_released_and_runs_on_is_saved_when_it_is_deleted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletions, "FOLLOWS_SECONDS", 0.0)
    stage = KubernetesStage()
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            (pod,) = await stage.start()
            await adapter.release(Release("kube-scheduler's", {pod.uid: Verdict.COMMITTED}))
            await stage.preempt_with_deadline(pod)
            await coordinator.wait_for_signal(pod)
