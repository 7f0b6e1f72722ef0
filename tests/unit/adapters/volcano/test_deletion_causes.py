"""A deletion that Volcano's scheduler has not decided: handed over, unless the job's controller wants the pod gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.conformance import RunningWorkload
from cedana_sched.adapter.conformance.coordinator import Coordinator
from cedana_sched.adapter.conformance.stage import running_beside
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.objects import names
from cedana_sched.model.policy import CheckpointPolicy, OnFinalDeletion
from cedana_sched.model.preemption import Release, Verdict
from cedana_sched_volcano.adapter import VolcanoAdapter
from cedana_sched_volcano.deletion_causes import OUT_OF_SYNC
from cedana_sched_volcano.objects import SCHEDULER_NAME, TASK, TASK_INDEX, VCJOBS
from tests.unit.adapters.volcano.volcano_stage import DISRUPTED, NAMESPACE, VolcanoStage

HOOKED = {names.PRESTOP_TOKEN: "token", names.CONFIRM_DELETION: names.CONFIRM_ALWAYS}
DELETED = {"metadata": {"deletionTimestamp": "2040-01-01T00:00:00Z"}}
OWNER = {"apiVersion": VCJOBS.group_version, "kind": VCJOBS.kind, "name": "md", "uid": "job-uid", "controller": True}


class Stage(VolcanoStage):
    """A vcjob with two pods of the task `worker`, beside an adapter that saves deleted pods."""

    def __init__(self, *, hands_over: bool = True, **settings: Any) -> None:
        super().__init__()
        self.settings = {"handsOverDeletions": hands_over, **settings}
        self.put_job()

    def put_job(self, *, spec: Object | None = None, phase: str = "Running", **metadata: Any) -> None:
        body = {
            "metadata": {"name": "md", "namespace": NAMESPACE, "uid": "job-uid", **metadata},
            "spec": {"tasks": [{"name": "worker", "replicas": 2}], **(spec or {})},
            "status": {"state": {"phase": phase}},
        }
        self.api.put(VCJOBS, body)

    def put_worker(
        self,
        index: int = 0,
        *,
        owner: Object | None = OWNER,
        labels: Object | None = None,
        annotations: Object | None = None,
    ) -> RunningWorkload:
        return self.put_pod(
            f"md-worker-{index}",
            index=index,
            owner=owner,
            scheduler=SCHEDULER_NAME,
            labels={TASK: "worker", TASK_INDEX: str(index), **(labels or {})},
            annotations={**HOOKED, **(annotations or {})},
        )

    def said_of(self, pod: RunningWorkload) -> str | None:
        said: str | None = (self.pod_of(pod) or {})["metadata"]["annotations"].get(names.NOT_PREEMPTED)
        return said

    async def answer_to(self, pod: RunningWorkload) -> str | None:
        """What the adapter writes on the pod when it is deleted."""
        async with self.adapter():
            self.change_pod(pod, DELETED)
            await self.wait_until_reported()
        return self.said_of(pod)


async def test_pod_that_a_person_deletes_is_handed_over() -> None:
    stage = Stage()
    assert await stage.answer_to(stage.put_worker()) == names.NOT_BY_SCHEDULER


async def test_pod_is_let_go_where_no_other_adapter_saves_it() -> None:
    stage = Stage(hands_over=False)
    assert await stage.answer_to(stage.put_worker()) == "true"


async def test_pod_of_another_controller_is_handed_over_without_a_read() -> None:
    stage = Stage()
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "md", "uid": "set", "controller": True}
    stage.put_job(phase="Aborted")
    assert await stage.answer_to(stage.put_worker(owner=owner)) == names.NOT_BY_SCHEDULER


@pytest.mark.parametrize("confirms", [names.CONFIRM_IF_EVICTED, ""])
async def test_pod_whose_hook_does_not_wait_is_not_answered(confirms: str) -> None:
    stage = Stage()
    assert await stage.answer_to(stage.put_worker(annotations={names.CONFIRM_DELETION: confirms})) is None


async def test_pod_that_another_adapter_answers_is_left_to_it() -> None:
    stage = Stage(otherLabels=["of-others"])
    assert await stage.answer_to(stage.put_worker(labels={"of-others": "main"})) is None


async def test_pod_that_the_scheduler_evicts_is_reported_and_not_answered() -> None:
    stage = Stage()
    pod = stage.put_worker()
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            stage.change_pod(pod, {"status": {"conditions": [DISRUPTED]}})
            stage.change_pod(pod, DELETED)
            await stage.wait_until_reported()
            assert len(coordinator.preemptions()) == 1
    assert stage.said_of(pod) is None


async def test_member_of_a_gang_that_the_adapter_deletes_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    pod = stage.put_worker()
    async with stage.adapter() as adapter:

        async def is_gang(release: Release) -> bool:
            return bool(release.verdicts)

        monkeypatch.setattr(adapter._evictions, "on_released", is_gang)  # type: ignore[attr-defined]

        async def delete(*_: object, **__: object) -> None:
            stage.change_pod(pod, DELETED)

        stage.api.delete = delete  # type: ignore[method-assign]  # it waits for the pod's end
        await adapter.release(Release("gang@1", {pod.uid: Verdict.COMMITTED}))
        await stage.wait_until_reported()
    assert stage.said_of(pod) is None


@pytest.mark.parametrize(
    ("job", "index"),
    [
        pytest.param({"phase": "Aborting"}, 0, id="the job is being stopped"),
        pytest.param({"phase": "Completed"}, 0, id="the job is complete"),
        pytest.param({"deletionTimestamp": "2040-01-01T00:00:00Z"}, 0, id="the job is deleted"),
        pytest.param({"uid": "another"}, 0, id="another job has its name"),
        pytest.param({}, 2, id="the task is smaller now"),
        pytest.param({"spec": {"tasks": [{"name": "ps"}]}}, 0, id="the task is gone"),
    ],
)
@pytest.mark.parametrize("on_final", list(OnFinalDeletion))
async def test_pod_that_its_job_does_not_replace_is_saved_only_if_its_policy_says_so(
    job: Any, index: int, on_final: OnFinalDeletion, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    stage.put_job(**job)
    monkeypatch.setattr(stage, "policy_of_pod", lambda _: CheckpointPolicy(on_final_deletion=on_final))
    expected = names.NOT_BY_SCHEDULER if on_final is OnFinalDeletion.SAVE else "true"
    assert await stage.answer_to(stage.put_worker(index)) == expected


async def test_pod_of_a_job_that_is_gone_is_let_go() -> None:
    stage = Stage()
    stage.api.remove(VCJOBS, "md", NAMESPACE)
    assert await stage.answer_to(stage.put_worker()) == "true"


async def test_pod_that_a_policy_ends_or_restarts_begins_anew_whatever_its_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    saving = CheckpointPolicy(on_final_deletion=OnFinalDeletion.SAVE)
    monkeypatch.setattr(stage, "policy_of_pod", lambda _: saving)
    assert await stage.answer_to(stage.put_worker(annotations={OUT_OF_SYNC: "true"})) == "true"


async def test_pod_whose_end_restarts_the_job_is_not_saved_alone() -> None:
    stage = Stage()
    stage.put_job(spec={"policies": [{"event": "PodEvicted", "action": "RestartJob"}]})
    assert await stage.answer_to(stage.put_worker()) == "true"


async def test_pod_whose_deletion_was_known_before_the_adapter_is_handed_over() -> None:
    stage = Stage()
    pod = stage.put_worker()
    stage.change_pod(pod, DELETED)
    pods = Informer(Watch(stage.api, PODS, Pod))
    async with running_beside(pods.run()):
        await pods.synced.wait()
        events = EventRecorder(stage.api, "test")
        access = ClusterAccess(stage.api, events, pods, stage, stage, "-", stage, stage.settings)
        async with running_beside(VolcanoAdapter.connect(access).run()):
            await asyncio.wait_for(stage.api.until(lambda: stage.said_of(pod) == names.NOT_BY_SCHEDULER), 60)
