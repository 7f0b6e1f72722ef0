"""A pod whose preStop hook has waited in vain loses work: that is an Event on the pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from cedana_sched.cluster.coordinator import unanswered_deletions as module
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.unanswered_deletions import UnansweredDeletions
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.kube.builtin_kinds import Condition, ContainerStatus, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.lease import LeaseTiming
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import CONFIRMATION_SECONDS, INTERVAL
from tests.unit.cluster.coordinator.filled_mirrors import filled

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
GRACE = 600
WAITED = CONFIRMATION_SECONDS + module.MARGIN_SECONDS + 1


def deleted_pod(ago: float | None, *, when: str = names.CONFIRM_ALWAYS, **notes: str) -> Pod:
    annotations = {names.ID: "md", names.INDEX: "3", names.PRESTOP_TOKEN: "t", names.CONFIRM_DELETION: when}
    annotations |= {getattr(names, name): value for name, value in notes.items()}
    metadata = Metadata("md-3", "bio", "u", resource_version=str(ago), annotations=annotations)
    if ago is not None:
        ends_at = (NOW + timedelta(seconds=GRACE - ago)).isoformat()
        metadata = msgspec.structs.replace(metadata, deletion_timestamp=ends_at, deletion_grace_period_seconds=GRACE)
    running = PodStatus("Running", container_statuses=(ContainerStatus("main", {"running": {}}),))
    return Pod(metadata, PodSpec(node_name="b"), running)


def checkpoint(
    began_ago: float, reason: str = "evicted", step: str = "Dumping", *, ended_ago: float | None = None
) -> KnownCheckpoint:
    created = (NOW - timedelta(seconds=began_ago)).isoformat()
    metadata = {"name": "md", "namespace": "bio", "resourceVersion": "1", "creationTimestamp": created}
    spec = {"identity": {"id": "md", "index": 3}, "podRef": {"uid": "u"}, "reason": reason}
    status = {"step": step}
    if ended_ago is not None:
        status["completionTime"] = (NOW - timedelta(seconds=ended_ago)).isoformat()
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KnownCheckpoint)


class Field:
    def __init__(self, *pods: Pod, known: tuple[KnownCheckpoint, ...] = ()) -> None:
        self.published: list[PublishEvent] = []
        self.pods: Informer[Pod] = filled(*pods)
        self.pods.synced.set()
        checkpoints = CheckpointsById(filled(*known))
        checkpoints.synced.set()
        self._detection = UnansweredDeletions(self.pods, checkpoints, self.published.append, lambda: NOW)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._detection.run())
        try:
            await self.wait_for_timers()
            yield
            await self.wait_for_timers()
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def wait_for_timers(self) -> None:
        """Timers that are due have run after a few turns of the loop."""
        for _ in range(5):
            await asyncio.sleep(0)


async def test_deletion_that_nobody_answered_before_a_leader_came_is_published_once() -> None:
    field = Field(deleted_pod(WAITED))
    async with field.running():
        field.pods._put(msgspec.structs.replace(deleted_pod(WAITED)))
    (event,) = field.published
    assert (event.kind, event.severity) == ("NotSavedInTime", Severity.WARNING)
    assert event.workload is not None
    assert event.workload.uid == "u"
    assert f"The deletion of md-3 was not answered within {CONFIRMATION_SECONDS:.0f} s" in event.text


async def test_deletion_that_nobody_answers_under_a_leader_is_published_when_its_hook_has_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    field = Field(deleted_pod(None))
    async with field.running():
        monkeypatch.setattr(module, "CONFIRMATION_SECONDS", 1.0)
        monkeypatch.setattr(module, "MARGIN_SECONDS", 0.0)
        field.pods._put(deleted_pod(1.0))
    assert [event.kind for event in field.published] == ["NotSavedInTime"]


@pytest.mark.parametrize(
    "one",
    [
        deleted_pod(None),
        deleted_pod(1.0),
        deleted_pod(module.LATE_SECONDS),
        deleted_pod(WAITED, NOT_PREEMPTED="true"),
        deleted_pod(WAITED, NOT_PREEMPTED=f"{names.LEFT_OUT}x"),
        deleted_pod(WAITED, when=""),
        deleted_pod(WAITED, when=names.CONFIRM_IF_EVICTED),
        msgspec.structs.replace(deleted_pod(WAITED), status=PodStatus("Succeeded")),
        msgspec.structs.replace(deleted_pod(WAITED), status=PodStatus("Running")),
    ],
    ids=("not deleted", "hook waits", "long ago", "answered", "left out", "no hook", "not evicted", "done", "ended"),
)
async def test_other_pods_are_not_published(one: Pod) -> None:
    field = Field(one)
    async with field.running():
        pass
    assert field.published == []


async def test_deletions_without_the_answer_that_is_theirs_are_published() -> None:
    """A pod that was handed over waits for another adapter; one of Volcano's waits once it is evicted."""
    handed_over = deleted_pod(WAITED, NOT_PREEMPTED=names.NOT_BY_SCHEDULER)
    evicted = deleted_pod(WAITED, when=names.CONFIRM_IF_EVICTED)
    target = Condition("DisruptionTarget", "True", "PreemptionByScheduler")
    evicted = msgspec.structs.replace(evicted, status=msgspec.structs.replace(evicted.status, conditions=(target,)))
    for one in (handed_over, evicted):
        field = Field(one)
        async with field.running():
            pass
        assert len(field.published) == 1


@pytest.mark.parametrize(
    ("known", "is_published"),
    [
        (checkpoint(WAITED - 1), False),
        (checkpoint(WAITED - 1, step="Failed"), False),
        (checkpoint(600, step="Failed", ended_ago=WAITED + 60), False),
        (checkpoint(600, step="Failed", ended_ago=WAITED + 100), True),
        (checkpoint(3600, step="Ready"), True),
        (checkpoint(1, INTERVAL), True),
    ],
    ids=(
        "its own",
        "its own that failed",
        "failed before its release",
        "failed long before",
        "of an earlier eviction",
        "periodic",
    ),
)
async def test_checkpoint_of_the_deletion_explains_it(known: KnownCheckpoint, *, is_published: bool) -> None:
    field = Field(deleted_pod(WAITED), known=(known,))
    async with field.running():
        pass
    assert bool(field.published) == is_published


async def test_pod_that_is_gone_when_its_time_is_over_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MARGIN_SECONDS", 0.0)
    field = Field(deleted_pod(CONFIRMATION_SECONDS - 0.01))
    async with field.running():
        field.pods._replace(())
        await asyncio.sleep(0.05)  # longer than the hook would have waited
    assert field.published == []


def test_hook_waits_longer_than_another_replica_needs_to_lead() -> None:
    """20 s: docs/operations.md. So a coordinator's death costs no pod its work."""
    assert CONFIRMATION_SECONDS >= 20 + 10
    assert LeaseTiming().duration < 20
