"""Whether the doctor names the protected pods of which a checkpoint would fail, and why."""

from __future__ import annotations

from cedana_sched.cli.doctor.cluster.unsavable_pods import examine
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import PODS
from cedana_sched.model.objects import names

from .cluster_to_look_at import Cluster, said


def pod(name: str, status: str = "", reason: str = "UsesIoUring", *, protected: bool = True) -> Object:
    condition = {"type": names.CHECKPOINTABLE, "status": status, "reason": reason, "message": f"{reason}\x1b: do this"}
    return {
        "metadata": {"name": name, "namespace": "bio", "labels": {names.PROTECTED: "true" if protected else "false"}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}, condition]},
    }


async def test_pods_are_named_by_what_stands_in_the_way() -> None:
    pods = [pod("a", "False"), pod("b", "True"), pod("c"), pod("d", "False"), pod("e", "False", "HoldsGPU")]
    found = await examine(Cluster().put(PODS, *pods, pod("f", "False", protected=False)).reads)
    assert said(found) == [
        "warn a checkpoint of 1 would fail (HoldsGPU): bio/e",
        "warn a checkpoint of 2 would fail (UsesIoUring): bio/a, bio/d",
    ]
    assert found[1].remedy == "of the first: UsesIoUring?: do this"


async def test_nothing_is_found_where_nothing_is_known() -> None:
    assert said(await examine(Cluster().put(PODS, pod("a", "True"), pod("b")).reads)) == [
        "ok nothing is known for which a checkpoint of one of 2 would fail"
    ]
