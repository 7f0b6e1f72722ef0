"""No silent cold start, also where the webhook that prepared a pod did not have its snapshot yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.missed_restores import MissedRestores
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.kube.builtin_kinds import Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from tests.unit.cluster.coordinator.filled_mirrors import filled

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINE = {names.ID: "md", names.INDEX: "3"}


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def saved(
    seconds_ago: float, *, index: int = 3, step: str = "Ready", generation: int = 5, pod: str = "gone"
) -> KnownCheckpoint:
    identity = {"id": "md", "index": index}
    status = {"step": step, "commitTime": ago(seconds_ago), "snapshot": {**identity, "generation": generation}}
    spec = {"identity": identity, "podRef": {"nodeName": "a", "uid": pod}}
    return known(seconds_ago + 5, spec, status, f"md-{generation}")


def in_flight(began_ago: float, *, pod: str = "gone", step: str = "Dumping") -> KnownCheckpoint:
    return known(began_ago, {"identity": {"id": "md", "index": 3}, "podRef": {"uid": pod}}, {"step": step})


def known(began_ago: float, spec: Any, status: Any, name: str = "md") -> KnownCheckpoint:
    metadata = {"name": name, "namespace": "bio", "resourceVersion": "1", "creationTimestamp": ago(began_ago)}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KnownCheckpoint)


def pod(
    created: float = 5, node: str = "b", phase: str = "Pending", started: float | None = None, **annotations: str
) -> Pod:
    notes = {**MINE, **{getattr(names, name): value for name, value in annotations.items()}}
    metadata = Metadata(
        "md-3", "bio", "u", resource_version=node or "0", annotations=notes, creation_timestamp=ago(created)
    )
    start_time = None if started is None else ago(started)
    return Pod(metadata, PodSpec(node_name=node), PodStatus(phase=phase, start_time=start_time))


class Field:
    def __init__(self, *known: KnownCheckpoint, pods: tuple[Pod, ...] = ()) -> None:
        self.said: list[PublishEvent] = []
        self.pods: Informer[Pod] = filled(*pods)
        self.pods.synced.set()
        snapshots = CheckpointsById(filled(*known))
        snapshots.synced.set()
        self._looking = MissedRestores(self.pods, snapshots, self.said.append, lambda: NOW)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._looking.run())
        await asyncio.sleep(0)
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_who_began_anew_beside_his_snapshot_is_published_once() -> None:
    field = Field(saved(60), saved(90, generation=4), pods=(pod(node=""),))
    async with field.running():
        assert not field.said, "it is not bound yet"
        field.pods._put(pod())
        field.pods._put(pod(phase="Running"))
    (tell,) = field.said
    assert tell.kind == "ColdStart"
    assert tell.severity is Severity.WARNING
    assert tell.text.startswith("Started md-3 without checkpoint md/3@5, which was there")
    assert tell.workload is not None
    assert tell.workload.uid == "u"


async def test_who_was_bound_while_nobody_led_is_published_too() -> None:
    field = Field(saved(60), pods=(pod(),))
    async with field.running():
        assert [tell.kind for tell in field.said] == ["ColdStart"]


@pytest.mark.parametrize(
    ("missed", "one", "which", "why"),
    [
        (in_flight(60), pod(), "md/3, which is still being made", "the webhook's cache was behind"),
        (in_flight(2), pod(), "md/3, which is still being made", "it began only when the pod was created already"),
        (
            in_flight(60),
            pod(created=20, started=9),
            "md/3, which is still being made",
            "the webhook's cache was behind",
        ),
        (saved(3), pod(), "md/3@5, which was there", "the webhook's cache was behind"),
    ],
    ids=["in flight", "in flight, later than the pod", "in flight, and a new leader", "committed since"],
)
async def test_who_began_anew_while_his_snapshot_was_made_is_published(
    missed: KnownCheckpoint, one: Pod, which: str, why: str
) -> None:
    """A pod that replaces one whose deletion was forced may be there before that one's snapshot is committed."""
    field = Field(missed, pods=(one,))
    async with field.running():
        (tell,) = field.said
    assert tell.kind == "ColdStart"
    assert tell.text.startswith(f"Started md-3 without checkpoint {which}: {why}")


@pytest.mark.parametrize(
    ("missed", "one"),
    [
        pytest.param(saved(60), pod(RESTORE_IDENTITY="md/3"), id="it continues"),
        pytest.param(saved(60), pod(NOT_PROTECTED="why"), id="it is not protected"),
        pytest.param(saved(60), pod(MISSED_BY_WEBHOOK="true"), id="no webhook has seen it, which is published too"),
        pytest.param(saved(2, pod="u"), pod(), id="its own"),
        pytest.param(in_flight(2, pod="u"), pod(), id="its own, in flight"),
        pytest.param(in_flight(60, step="Aborting"), pod(), id="called off"),
        pytest.param(in_flight(60, step="Failed"), pod(), id="it failed in flight"),
        pytest.param(in_flight(2), pod(created=9, started=5), id="it began while the pod ran already"),
        pytest.param(saved(60, index=2), pod(), id="another replica's"),
        pytest.param(saved(60, step="Failed"), pod(), id="not saved"),
        pytest.param(saved(6000), pod(created=700), id="long ago: by an earlier leader"),
        pytest.param(saved(60), pod(phase="Succeeded"), id="it has ended"),
    ],
)
async def test_nothing_else_is(missed: KnownCheckpoint, one: Pod) -> None:
    field: Any = Field(missed, pods=(one,))
    async with field.running():
        assert not field.said
