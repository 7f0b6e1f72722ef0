"""A gang that Volcano breaks goes as a whole, also those members that it has not asked for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report
from cedana_sched.adapter.marked_evictions import NOT_WANTED
from cedana_sched.kube.builtin_kinds import Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.events import ObjectEvent
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, serialized_mark
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Signal, Verdict
from cedana_sched_volcano.adapter import VolcanoAdapter
from cedana_sched_volcano.objects import GROUP_NAME, PodGroup, PodGroupSpec

AT = "2026-05-01T12:00:00Z"


class Cluster:
    """Three pods of a gang that needs three; Volcano wants the first one, unless nobody is `asked`."""

    def __init__(self, asked: int | None = 0) -> None:
        self.asked = asked
        self.pods: Informer[Pod] = Informer(cast("Any", None))
        self.pods.synced.set()
        self.deleted: list[tuple[str, str | None]] = []
        self.replaced: set[str] = set()
        """Uids of pods whose names others have by now; the mirror has not heard of it."""
        nothing = cast("Any", None)
        self.said: list[ObjectEvent] = []
        api = events = cast("Any", self)
        self.adapter = VolcanoAdapter(ClusterAccess(api, events, self.pods, self, nothing, "-", nothing))
        group = PodGroup(Metadata(name="md", namespace="bio", uid="group"), PodGroupSpec(min_member=3))
        self.adapter._groups._put(group)
        self.pods._replace(tuple(self._pod(index) for index in range(3)))
        for pod in self.pods:
            self.adapter._evictions._on_pod_change(None, pod)
        self.adapter._evictions.synced.set()

    def record_event(self, event: ObjectEvent) -> None:
        self.said.append(event)

    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        return CheckpointPolicy()

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return CheckpointPolicy()

    async def delete(self, resource: object, name: str, namespace: str, *, uid: str | None = None) -> None:
        if uid in self.replaced:
            raise ConflictError("the UID in the precondition does not match", status=409)
        self.deleted.append((name, uid))

    def _pod(self, index: int) -> Pod:
        now = datetime.now(tz=UTC).isoformat(timespec="milliseconds")
        mark = (
            {names.EVICTION_REQUESTED: serialized_mark(EvictionMark("volcano", now, now))}
            if index == self.asked
            else {}
        )
        annotations = {names.ID: "md", names.INDEX: str(index), GROUP_NAME: "md", **mark}
        metadata = Metadata(
            name=f"md-{index}", namespace="bio", uid=f"uid-{index}", resource_version="1", annotations=annotations
        )
        return Pod(metadata, PodSpec(node_name="n1", scheduler_name="volcano"), PodStatus("Running"))


async def reported(cluster: Cluster, release: Release) -> list[Report]:
    """What is told when it is released."""
    heard: list[Report] = []

    async def read() -> None:
        async for report in cluster.adapter.reports():
            heard.append(report)  # noqa: PERF401 - it never ends

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    await cluster.adapter.release(release)
    await asyncio.sleep(0)
    reading.cancel()
    return heard


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


@pytest.mark.parametrize("verdict", [Verdict.EVICT, Verdict.KEEP_RUNNING, Verdict.NOT_NEEDED])
async def test_members_that_were_not_saved_run_on(verdict: Verdict) -> None:
    cluster = Cluster()
    signal = await told(cluster)
    await cluster.adapter.release(Release(signal.uid, {f"uid-{index}": verdict for index in range(3)}))
    assert cluster.deleted == []


async def test_who_is_kept_running_says_so_and_what_to_do() -> None:
    cluster = Cluster()
    signal = await told(cluster)
    verdicts = {"uid-0": Verdict.KEEP_RUNNING, "uid-1": Verdict.EVICT}
    await cluster.adapter.release(Release(signal.uid, verdicts, {"uid-0": "it uses io_uring"}))
    [said] = cluster.said
    assert (said.involved["name"], said.reason, said.warning) == ("md-0", "EvictionRefused", True)
    assert "it could not be saved (it uses io_uring)" in said.message
    assert "Evict" in said.message


async def test_a_member_that_is_gone_and_was_made_anew_keeps_no_other_one_back() -> None:
    cluster = Cluster()
    signal = await told(cluster)
    cluster.replaced.add("uid-0")
    await cluster.adapter.release(Release(signal.uid, {f"uid-{index}": Verdict.COMMITTED for index in range(3)}))
    assert cluster.deleted == [("md-1", "uid-1"), ("md-2", "uid-2")]


SAVED = Release("group@before", {f"uid-{index}": Verdict.COMMITTED for index in range(3)})
"""Decided before a restart; nobody asks for it any more."""


async def test_a_gang_that_was_taken_back_while_nobody_listened_runs_on() -> None:
    cluster = Cluster(asked=None)
    assert await reported(cluster, SAVED) == [PreemptionCancelled("group@before", NOT_WANTED)]
    assert cluster.deleted == []


@pytest.mark.parametrize("deleted", [True, False], ids=["being deleted", "gone"])
async def test_the_rest_of_a_gang_goes_whose_release_was_used_while_nobody_listened(deleted: bool) -> None:
    cluster = Cluster(asked=None)
    (first, *_) = cluster.pods
    if deleted:
        metadata = msgspec.structs.replace(first.metadata, resource_version="2", deletion_timestamp=AT)
        cluster.pods._put(msgspec.structs.replace(first, metadata=metadata))
    else:
        cluster.pods._drop(first)
    assert await reported(cluster, SAVED) == []
    assert cluster.deleted == [("md-1", "uid-1"), ("md-2", "uid-2")]


async def test_a_member_that_was_gone_before_its_gang_was_saved_does_not_say_that_the_gang_goes() -> None:
    cluster = Cluster(asked=None)
    cluster.pods._drop(next(iter(cluster.pods)))
    release = Release(SAVED.signal_uid, {**SAVED.verdicts, "uid-0": Verdict.NOT_NEEDED})
    assert await reported(cluster, release) == [PreemptionCancelled("group@before", NOT_WANTED)]
    assert cluster.deleted == []
