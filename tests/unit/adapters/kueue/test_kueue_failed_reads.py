"""What cannot be read or written, or not yet, is no sign that Kueue evicts a Job no more: that would cost its work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from cedana_sched.adapter.conformance.coordinator import running_coordinator
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import AbsentError, ApiError, ApiUnavailableError, RefusedByServerError
from cedana_sched.kube.resources import JOBS, PREEMPTION_HOLDS, Resource
from cedana_sched.model.preemption import Verdict
from cedana_sched_kueue.objects import WORKLOADS
from tests.unit.adapters.kueue.kueue_stage import NAMESPACE, KueueStage
from tests.unit.adapters.kueue.test_kueue_torn import Stage

EVICTED: Object = {"conditions": [{"type": "Evicted", "status": "True"}]}


def _read_ahead(stage: Stage, workloads: Mapping[str, Object]) -> None:
    """The API server has suspended the Jobs and has these Workloads by now; the watches have not told."""
    (job,) = stage.api.all_of(JOBS)
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "controller": True,
        **{k: job["metadata"][k] for k in ("name", "uid")},
    }

    def workload(name: str) -> Object:
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-of-{name}", "ownerReferences": [owner]}
        return {"metadata": metadata, **workloads[name]}

    async def get(resource: Resource, name: str, namespace: str | None = None, *, into: type[Any]) -> Any:
        if resource == JOBS:
            return msgspec.json.decode(
                msgspec.json.encode({**job, "spec": {**job["spec"], "suspend": True}}), type=into
            )
        if name not in workloads:
            raise AbsentError(f"no {resource.kind} {namespace}/{name}", status=404)
        return msgspec.convert(workload(name), into)

    async def list_all(resource: Resource, *_: object, into: type[Any], **__: object) -> tuple[tuple[Any, ...], str]:
        assert resource == WORKLOADS
        return tuple(msgspec.convert(workload(name), into) for name in workloads), "1"

    stage.api.get, stage.api.list_all = get, list_all  # type: ignore[method-assign]  # they are ahead of the watches


async def test_a_workload_that_is_gone_does_not_speak_for_the_others() -> None:
    stage = Stage()
    (victim,) = await stage.start()
    (workload,) = stage.api.all_of(WORKLOADS)
    first = {**workload["metadata"], "name": "a-workload-that-goes", "uid": "another"}
    stage.api.put(WORKLOADS, {**workload, "metadata": first})
    async with stage.adapter():
        _read_ahead(stage, {workload["metadata"]["name"]: {"status": EVICTED}})
        stage.remove_pod(victim)
        await stage.wait_until_reported()
        assert not stage.is_let_go(victim)


@pytest.mark.parametrize("is_evicted", [False, True])
async def test_a_job_of_which_no_workload_is_known_is_asked_about(is_evicted: bool) -> None:
    stage = Stage()
    (victim,) = await stage.start()
    (workload,) = stage.api.all_of(WORKLOADS)
    stage.api.remove(WORKLOADS, workload["metadata"]["name"], NAMESPACE)
    async with stage.adapter():
        _read_ahead(stage, {workload["metadata"]["name"]: {"status": EVICTED if is_evicted else {}}})
        stage.remove_pod(victim)
        await stage.wait_until_reported()
        assert stage.is_let_go(victim) is not is_evicted


@pytest.mark.parametrize("error", [ApiUnavailableError("no answer"), RefusedByServerError("forbidden", status=403)])
async def test_who_cannot_be_asked_about_is_not_let_go(error: ApiError) -> None:
    stage = Stage()
    (victim,) = await stage.start()
    async with stage.adapter():

        async def get(*_: object, **__: object) -> Any:
            raise error

        stage.api.get = get  # type: ignore[method-assign]  # it fails
        stage.remove_pod(victim)
        await stage.wait_until_reported()
        await asyncio.sleep(0.2)  # it is tried again
        assert not stage.is_let_go(victim)


async def test_a_release_that_cannot_be_written_takes_nothing_back() -> None:
    stage = KueueStage()
    (victim,) = await stage.start()
    async with running_coordinator(stage) as coordinator:
        await stage.preempt(victim)
        signal = await coordinator.wait_for_signal(victim)
        release = await coordinator.decide(signal, Verdict.COMMITTED)
        async with stage.scheduler_outage():
            assert not await coordinator.try_release_call(release)
        assert coordinator.cancellations() == set()
        await coordinator.deliver_release(release)
        await coordinator.check_final_eviction(victim)


@pytest.mark.parametrize("what", ["its Workload is not known", "its Workload cannot be read", "nothing has changed"])
async def test_a_new_coordinator_takes_nothing_back_that_it_cannot_see(what: str) -> None:
    stage = KueueStage()
    (victim,) = await stage.start()
    async with running_coordinator(stage) as coordinator:
        await stage.preempt(victim)
        signal = await coordinator.wait_for_signal(victim)
    (workload,) = stage.api.all_of(WORKLOADS)
    if what == "its Workload is not known":
        stage.api.remove(WORKLOADS, workload["metadata"]["name"], NAMESPACE)
    elif what == "its Workload cannot be read":
        stage.api.put(WORKLOADS, {**workload, "status": {"conditions": [{"type": "Evicted", "status": True}]}})
    assert stage.api.all_of(PREEMPTION_HOLDS)
    async with running_coordinator(stage) as coordinator:
        await stage.wait_until_reported()
        assert signal.uid not in coordinator.cancellations()


async def test_a_new_coordinator_that_cannot_read_earlier_holds_takes_nothing_back() -> None:
    stage = KueueStage()
    (victim,) = await stage.start()
    async with running_coordinator(stage) as coordinator:
        await stage.preempt(victim)
        await coordinator.wait_for_signal(victim)
    await stage.take_back(victim)
    read = stage.api.list_all

    async def list_all(resource: Resource, *args: Any, **kwargs: Any) -> Any:
        if resource == PREEMPTION_HOLDS:
            raise ApiUnavailableError("no answer")
        return await read(resource, *args, **kwargs)

    stage.api.list_all = list_all  # type: ignore[method-assign]  # it fails for holds
    async with running_coordinator(stage) as coordinator:
        await stage.wait_until_reported()
        assert coordinator.cancellations() == set(), "it ends by its deadline"
