"""A tenant deletes pods of his that name jobs of his own: what is noted of them leaves room for what others lose."""

from __future__ import annotations

import base64
import random
import string

import pytest

from cedana_sched.kube.objects import Metadata, Pod, PodSpec, PodStatus
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched_armada import doubts
from cedana_sched_armada.jobs import CARDINALITY, GANG
from tests.unit.adapters.armada.armada_builders import NAMESPACE, QUEUE, World, preempted, rfc3339, until

LETTERS = string.ascii_letters + string.digits


def text(length: int) -> str:
    return "".join(random.choices(LETTERS, k=length))


def his(world: World, number: int, name: str, mine: dict[str, str], labels: dict[str, str], *, deleted: bool) -> Pod:
    metadata = Metadata(
        name=name,
        namespace="tenant-b",
        uid=f"his-{number}",
        resource_version="2" if deleted else "1",
        labels=labels,
        annotations=mine,
        creation_timestamp=rfc3339(world.now - 60),
        deletion_timestamp=rfc3339(world.now + 60) if deleted else None,
        deletion_grace_period_seconds=60 if deleted else None,
    )
    return Pod(metadata, PodSpec(node_name="node-2"), PodStatus(phase="Running", start_time=rfc3339(world.now)))


@pytest.mark.parametrize("pods", [50, 900])
async def test_deleted_pods_of_one_tenant_keep_no_preemption_of_others_from_being_noted(
    world: World, monkeypatch: pytest.MonkeyPatch, pods: int
) -> None:
    monkeypatch.setattr(doubts, "WORD_SECONDS", 0.05)
    write = world.notes.write

    async def bounded(notes: bytes) -> None:
        if len(base64.b64encode(notes)) > (1 << 20):  # stricter than the API server, which counts what is decoded
            raise RetryableError(f"ConfigMap too long: {len(notes)}", remedy="")
        await write(notes)

    monkeypatch.setattr(world.notes, "write", bounded)
    job = world.running()
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        for number in range(pods):
            mine = {"armada_jobset_id": text(512), names.ID: text(60), GANG: text(512), CARDINALITY: "2"}
            labels = {
                "armada_job_id": text(63),
                "armada_job_run_id": text(63),
                "armada_queue_id": QUEUE,
                names.PROTECTED: "true",
            }
            name = text(200).lower()
            world.pods._put(his(world, number, name, mine, labels, deleted=False))
            world.pods._put(his(world, number, name, mine, labels, deleted=True))
        await until(lambda: len(coordinator.adapter._ledger.cases) == pods)
        for _ in range(pods):  # each is noted, and reported
            assert (await coordinator.signal()).victims[0].workload.namespace == "tenant-b"
        signal = await preempted(world, coordinator, job)
        assert signal.victims[0].workload.namespace == NAMESPACE
