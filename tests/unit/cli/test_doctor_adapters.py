"""Whether the doctor sees a scheduler that no adapter follows."""

from __future__ import annotations

import json

from cedana_sched.cli.doctor.cluster.adapters import API_SERVICES, followed
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CONFIG_MAPS

from .cluster_to_look_at import NAMESPACE, RELEASE, Cluster


def cluster_with(*adapters: str, groups: tuple[str, ...]) -> Cluster:
    data = {"coordinator.json": json.dumps({"adapters": adapters}), "agent.json": "{}"}
    told: Object = {"metadata": {"name": RELEASE, "namespace": NAMESPACE}, "data": data}
    served = [{"metadata": {"name": f"v1.{group}"}, "spec": {"group": group}} for group in ("", *groups)]
    return Cluster().put(CONFIG_MAPS, told).put(API_SERVICES, *served)


async def test_schedulers_that_are_followed_are_well() -> None:
    cluster = cluster_with("kueue", "armada", groups=("kueue.x-k8s.io",))
    assert await cluster.findings(followed) == ["ok enabled: armada, kueue"]


async def test_a_scheduler_without_its_adapter_is_named() -> None:
    cluster = cluster_with("kueue", groups=("kueue.x-k8s.io", "scheduling.volcano.sh"))
    assert await cluster.findings(followed) == [
        "warn volcano is here, and its adapter is not enabled: what it preempts is lost"
    ]


async def test_an_adapter_without_its_scheduler_is_named() -> None:
    assert await cluster_with("kueue", groups=()).findings(followed) == [
        "warn the adapter of kueue is enabled, and no kinds of kueue.x-k8s.io are served"
    ]


async def test_no_adapter_is_a_failure() -> None:
    assert await cluster_with(groups=("kueue.x-k8s.io",)).findings(followed) == [
        "fail no adapter is enabled: nothing hears of preemptions"
    ]
