"""A gang that Volcano breaks goes as a whole, also those members that it has not asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from cedana_sched.adapter.cluster import ClusterAccess
from cedana_sched.adapter.contract import Preempted
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.objects import Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.watching import Mirror
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, written
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Signal, Verdict
from cedana_sched_volcano.adapter import VolcanoAdapter
from cedana_sched_volcano.objects import GROUP_NAME, PodGroup, PodGroupSpec


class Cluster:
    """Three pods of a gang that needs three; Volcano wants the first one."""

    def __init__(self) -> None:
        self.pods: Mirror[Pod] = Mirror(cast("Any", None))
        self.pods.synced.set()
        self.deleted: list[tuple[str, str | None]] = []
        self.replaced: set[str] = set()
        """Uids of pods whose names others have by now; the mirror has not heard of it."""
        nothing = cast("Any", None)
        self.adapter = VolcanoAdapter(ClusterAccess(cast("Any", self), nothing, self.pods, self, nothing, "-", nothing))
        group = PodGroup(Metadata(name="md", namespace="bio", uid="group"), PodGroupSpec(min_member=3))
        self.adapter._groups._put(group)
        self.pods._replace(tuple(self._pod(index) for index in range(3)))
        for pod in self.pods:
            self.adapter._evictions._heard(None, pod)
        self.adapter._evictions.synced.set()

    def named(self, name: str | None) -> CheckpointPolicy:
        return CheckpointPolicy()

    async def delete(self, resource: object, name: str, namespace: str, *, uid: str | None = None) -> None:
        if uid in self.replaced:
            raise ConflictError("the UID in the precondition does not match", status=409)
        self.deleted.append((name, uid))

    def _pod(self, index: int) -> Pod:
        now = datetime.now(tz=UTC).isoformat(timespec="milliseconds")
        mark = {names.EVICTING: written(EvictionMark("volcano", now, now))} if index == 0 else {}
        annotations = {names.ID: "md", names.INDEX: str(index), GROUP_NAME: "md", **mark}
        metadata = Metadata(
            name=f"md-{index}", namespace="bio", uid=f"uid-{index}", resource_version="1", annotations=annotations
        )
        return Pod(metadata, PodSpec(node_name="n1", scheduler_name="volcano"), PodStatus("Running"))


async def told(cluster: Cluster) -> Signal:
    report = await anext(cluster.adapter.reports())
    assert isinstance(report, Preempted)
    return report.signal


async def test_all_members_are_saved_together_and_deleted_together() -> None:
    cluster = Cluster()
    signal = await told(cluster)
    assert [(one.workload.name, one.gang) for one in signal.victims] == [(f"md-{i}", "group") for i in range(3)]
    release = Release(signal.uid, {f"uid-{index}": Verdict.COMMITTED for index in range(3)})
    await cluster.adapter.release(release)
    assert cluster.deleted == [(f"md-{index}", f"uid-{index}") for index in range(3)]


@pytest.mark.parametrize("verdict", [Verdict.LET_GO, Verdict.KEEP_RUNNING, Verdict.NOT_NEEDED])
async def test_members_that_were_not_saved_run_on(verdict: Verdict) -> None:
    cluster = Cluster()
    signal = await told(cluster)
    await cluster.adapter.release(Release(signal.uid, {f"uid-{index}": verdict for index in range(3)}))
    assert cluster.deleted == []


async def test_a_member_that_is_gone_and_was_made_anew_keeps_no_other_one_back() -> None:
    cluster = Cluster()
    signal = await told(cluster)
    cluster.replaced.add("uid-0")
    await cluster.adapter.release(Release(signal.uid, {f"uid-{index}": Verdict.COMMITTED for index in range(3)}))
    assert cluster.deleted == [("md-1", "uid-1"), ("md-2", "uid-2")]
