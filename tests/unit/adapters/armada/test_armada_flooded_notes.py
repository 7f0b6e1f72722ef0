"""A tenant deletes pods of his that name jobs of his own: what is noted of them leaves room for what others lose."""

from __future__ import annotations

import base64

import pytest

from cedana_sched.model.errors import RetryableError
from cedana_sched_armada import unexplained_deletions
from cedana_sched_armada.job_of_pod import CARDINALITY, GANG
from tests.unit.adapters.armada.armada_builders import NAMESPACE, World, preempted, until
from tests.unit.adapters.armada.tenants_pods import his, text


@pytest.mark.parametrize("pods", [50, 900])
async def test_deleted_pods_of_one_tenant_keep_no_preemption_of_others_from_being_noted(
    world: World, monkeypatch: pytest.MonkeyPatch, pods: int
) -> None:
    monkeypatch.setattr(unexplained_deletions, "WORD_SECONDS", 0.05)
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
            name, job_of_his, run, id_, job_set = (text(size) for size in (200, 63, 63, 60, 512))
            annotations = {GANG: text(512), CARDINALITY: "2"}
            for ends_in in (None, 60):
                pod = his(
                    world, name.lower(), f"his-{number}", job_of_his, run=run, job_set=job_set, id=id_,
                    annotations=annotations, ends_in=ends_in,
                )  # fmt: skip
                world.pods._put(pod)
        await until(lambda: len(coordinator.adapter._ledger.cases) == pods)
        for _ in range(pods):  # each is noted, and reported
            assert (await coordinator.signal()).victims[0].workload.namespace == "tenant-b"
        signal = await preempted(world, coordinator, job)
        assert signal.victims[0].workload.namespace == NAMESPACE
