"""No adapter reports a preemption in a namespace that is not served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from cedana_sched.adapter.conformance.cluster_stage import ClusterStage
from cedana_sched.adapter.conformance.coordinator import Coordinator
from cedana_sched.adapter.contract import Preempted
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import JOBS
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Release, Verdict
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched_kueue.objects import ADMISSION_CHECKS, WORKLOADS
from tests.unit.adapters.armada.armada_stage import ArmadaStage
from tests.unit.adapters.armada.fake_armada import FakeArmada
from tests.unit.adapters.kueue.kueue_stage import KueueStage
from tests.unit.adapters.volcano.volcano_stage import VolcanoStage

EXCLUDED = ServedNamespaces(frozenset({"bio", "research"}))


@pytest.fixture(params=["kueue", "volcano", "armada"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[ClusterStage]:
    if request.param != "armada":
        yield KueueStage() if request.param == "kueue" else VolcanoStage()
        return
    armada = FakeArmada(time.time)
    async with armada.serving() as address:
        yield ArmadaStage(armada, address)


@pytest.mark.parametrize("served", [EVERYWHERE, EXCLUDED], ids=["served", "excluded"])
async def test_who_is_preempted_in_an_excluded_namespace_is_nobodys_victim(
    stage: ClusterStage, served: ServedNamespaces
) -> None:
    stage.served = served
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            (victim,) = await stage.start()
            await stage.preempt(victim)
            await stage.wait_until_reported()
    told = {
        one.workload.uid
        for report in coordinator.received
        if isinstance(report, Preempted)
        for one in report.signal.victims
    }
    assert told == ({victim.uid} if served is EVERYWHERE else set())


def _asks_our_check(stage: KueueStage) -> None:
    """A Workload of a queue with our AdmissionCheck, which Kueue starts only once the check has passed."""
    metadata = {"name": "md", "namespace": "bio"}
    template: Object = {"spec": {"containers": [{"name": "main"}]}}
    stage.api.put(JOBS, {"metadata": metadata, "spec": {"suspend": True, "template": template}})
    stage.api.put(
        ADMISSION_CHECKS,
        {"metadata": {"name": "save"}, "spec": {"controllerName": names.ADMISSION_CHECK_CONTROLLER}},
    )
    status: Object = {
        "conditions": [{"type": "QuotaReserved", "status": "True"}],
        "admissionChecks": [{"name": "save", "state": "Pending", "message": ""}],
    }
    spec = {"podSets": [{"name": "main", "template": template}]}
    owned = {**metadata, "ownerReferences": [stage._owner("md")]}
    stage.api.put(WORKLOADS, {"metadata": owned, "spec": spec, "status": status})


async def test_a_workload_of_an_excluded_namespace_passes_our_check_as_it_is() -> None:
    stage = KueueStage()
    stage.served = EXCLUDED
    _asks_our_check(stage)
    async with stage.adapter():
        await stage.wait_until_reported()
    (workload,) = stage.api.all_of(WORKLOADS)
    (check,) = workload["status"]["admissionChecks"]
    assert (check["state"], check["podSetUpdates"]) == ("Ready", [])
    assert check["message"] == ("starts as it would without this check: namespace bio is excluded (excludedNamespaces)")


async def test_kueue_tries_again_at_once_when_its_namespace_is_excluded_while_it_is_held() -> None:
    """The coordinator has called the preemption off, and releases it; of the Job nothing is seen any more."""
    stage = KueueStage()
    (victim,) = await stage.start()
    name = victim.workload.name.rpartition("-")[0]
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            await stage.preempt(victim)
            signal = await coordinator.wait_for_signal(victim)
    stage.served = EXCLUDED
    async with stage.adapter() as adapter:
        await adapter.release(Release(signal.uid, {victim.uid: Verdict.NOT_NEEDED}, {}))
        async with asyncio.timeout(60):
            await stage.wait_until_evicted(victim)
    job = stage.api.stored(JOBS, name, "bio")
    assert job is not None
    assert job["spec"]["suspend"]
