"""No silent cold start, also where the webhook that prepared a pod did not have its snapshot yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from cedana_sched.cluster.coordinator.known import ById, KnownCheckpoint
from cedana_sched.cluster.coordinator.passed_over import PassedOver
from cedana_sched.coordinator.core import Tell
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.kube.objects import Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.watching import Mirror
from cedana_sched.model.objects import names
from tests.unit.cluster_coordinator.filled_mirrors import filled

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINE = {names.ID: "md", names.INDEX: "3"}


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def saved(seconds_ago: float, *, index: int = 3, step: str = "Ready", generation: int = 5) -> KnownCheckpoint:
    identity = {"id": "md", "index": index}
    status = {"step": step, "committedAt": ago(seconds_ago), "snapshot": {**identity, "generation": generation}}
    spec = {"identity": identity, "pod": {"nodeName": "a", "uid": f"u{generation}"}}
    metadata = {"name": f"md-{generation}", "namespace": "bio", "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KnownCheckpoint)


def pod(created: float = 5, node: str = "b", phase: str = "Pending", **annotations: str) -> Pod:
    notes = {**MINE, **{getattr(names, name): value for name, value in annotations.items()}}
    metadata = Metadata(
        "md-3", "bio", "u", resource_version=node or "0", annotations=notes, creation_timestamp=ago(created)
    )
    return Pod(metadata, PodSpec(node_name=node), PodStatus(phase=phase))


class Field:
    def __init__(self, *known: KnownCheckpoint, pods: tuple[Pod, ...] = ()) -> None:
        self.said: list[Tell] = []
        self.pods: Mirror[Pod] = filled(*pods)
        self.pods.synced.set()
        snapshots = ById(filled(*known))
        snapshots.synced.set()
        self._looking = PassedOver(self.pods, snapshots, self.said.append, lambda: NOW)

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
    ("known", "one"),
    [
        pytest.param(saved(60), pod(RESTORES="md/3"), id="it continues"),
        pytest.param(saved(60), pod(REFUSED="why"), id="it is not protected"),
        pytest.param(saved(60), pod(PREPARED_LATE="true"), id="no webhook has seen it, which is published too"),
        pytest.param(saved(2), pod(), id="saved since: its own"),
        pytest.param(saved(60, index=2), pod(), id="another replica's"),
        pytest.param(saved(60, step="Failed"), pod(), id="not saved"),
        pytest.param(saved(6000), pod(created=700), id="long ago: by an earlier leader"),
        pytest.param(saved(60), pod(phase="Succeeded"), id="it has ended"),
    ],
)
async def test_nothing_else_is(known: KnownCheckpoint, one: Pod) -> None:
    field: Any = Field(known, pods=(one,))
    async with field.running():
        assert not field.said
