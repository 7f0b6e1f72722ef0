"""Whether the doctor sees a scheduler that no adapter follows."""

from __future__ import annotations

import json

import pytest

from cedana_sched.cli.doctor.cluster import examine
from cedana_sched.cli.doctor.cluster.adapters import (
    API_SERVICES,
    ARMADA_JOB,
    check_armada_has_adapter,
    check_enabled_adapters,
)
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CONFIG_MAPS, DEPLOYMENTS, PODS
from cedana_sched_armada.executor_labels import JOB_LABEL

from .cluster_to_look_at import NAMESPACE, RELEASE, Cluster


def cluster_with(*adapters: str, groups: tuple[str, ...]) -> Cluster:
    data = {"coordinator.json": json.dumps({"adapters": adapters}), "agent.json": "{}"}
    told: Object = {"metadata": {"name": RELEASE, "namespace": NAMESPACE}, "data": data}
    served = [{"metadata": {"name": f"v1.{group}"}, "spec": {"group": group}} for group in ("", *groups)]
    return Cluster().put(CONFIG_MAPS, told).put(API_SERVICES, *served)


async def test_schedulers_that_are_followed_are_well() -> None:
    cluster = cluster_with("kueue", "armada", groups=("kueue.x-k8s.io",))
    assert await cluster.findings(check_enabled_adapters) == ["ok enabled: armada, kueue"]


async def test_a_scheduler_without_its_adapter_is_named() -> None:
    cluster = cluster_with("kueue", groups=("kueue.x-k8s.io", "scheduling.volcano.sh"))
    assert await cluster.findings(check_enabled_adapters) == [
        "warn volcano is here, and its adapter is not enabled: what it preempts is lost"
    ]


async def test_an_adapter_without_its_scheduler_is_named() -> None:
    assert await cluster_with("kueue", groups=()).findings(check_enabled_adapters) == [
        "warn the adapter of kueue is enabled, and no kinds of kueue.x-k8s.io are served"
    ]


async def test_no_adapter_is_a_failure() -> None:
    assert await cluster_with(groups=("kueue.x-k8s.io",)).findings(check_enabled_adapters) == [
        "fail no adapter is enabled: no preemption is detected"
    ]


JOB: Object = {"metadata": {"name": "armada-1-0", "namespace": "lab", "labels": {JOB_LABEL: "1"}}, "status": {}}
EXECUTOR: Object = {"metadata": {"name": "executor", "namespace": "armada", "labels": {"app": "armada-executor"}}}


async def test_armada_without_its_adapter_is_named() -> None:
    """It has no kinds: its jobs show that it is there, or its executor does."""
    with_jobs = cluster_with("kueue", groups=()).put(PODS, JOB, JOB).put(DEPLOYMENTS, EXECUTOR)
    assert await with_jobs.findings(check_armada_has_adapter) == [
        "warn armada is here (2 pods of its jobs), and its adapter is not enabled: what it preempts is lost"
    ]
    idle = cluster_with("kueue", groups=()).put(PODS, JOB | {"status": {"phase": "Failed"}}).put(DEPLOYMENTS, EXECUTOR)
    assert await idle.findings(check_armada_has_adapter) == [
        "warn armada is here (its executor), and its adapter is not enabled: what it preempts is lost"
    ]
    assert (check_armada_has_adapter in {look for _, look in examine.OF_INSTALLATION}, ARMADA_JOB) == (True, JOB_LABEL)


@pytest.mark.parametrize(("adapters", "objects"), [(("armada", "kueue"), (JOB,)), (("kueue",), ())])
async def test_armada_that_is_followed_or_not_there_is_well(
    adapters: tuple[str, ...], objects: tuple[Object, ...]
) -> None:
    assert await cluster_with(*adapters, groups=()).put(PODS, *objects).findings(check_armada_has_adapter) == []
