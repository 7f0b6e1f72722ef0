"""What survives the coordinator, and which job sets it follows."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import pytest
import structlog

from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Verdict
from cedana_sched_armada import job_sets, ledger
from cedana_sched_armada.events import JobSet, event_position_key
from cedana_sched_armada.ledger import Ledger
from tests.unit.adapters.armada.armada_builders import (
    JOB_SET,
    NAMESPACE,
    QUEUE,
    Coordinator,
    World,
    item,
    preempted,
    until,
)


def _followed(coordinator: Coordinator) -> list[str]:
    job_sets = coordinator.adapter._job_sets
    return [one.name for one in sorted(job_sets._watched)] if job_sets is not None else []


def _position(coordinator: Coordinator) -> str:
    return coordinator.adapter._ledger.streams[JobSet(QUEUE, JOB_SET)]


def _has_heard_all(coordinator: Coordinator, world: World) -> bool:
    """Of the events in the last batch some are of no concern."""
    return (
        event_position_key(_position(coordinator))[:2] == event_position_key(world.armada.last_id(QUEUE, JOB_SET))[:2]
    )


async def test_what_is_pending_is_told_again_with_the_same_uid(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        told = await preempted(world, coordinator, job)
    world.now += 5
    world.delete(job)  # and its pod is gone meanwhile
    async with world.coordinator() as coordinator:
        assert await coordinator.signal() == told
        await coordinator.release(told)
    async with world.coordinator() as coordinator:
        await coordinator.adapter._ready.wait()
        assert coordinator.reports.empty(), "it is over"
    assert len(world.armada.successors_of(job)) == 1


async def test_an_adapter_that_is_run_again_goes_on(world: World) -> None:
    job, other = world.submit(), world.submit()
    for one in (job, other):
        world.start(one)
    async with world.coordinator() as coordinator:
        told = await preempted(world, coordinator, job)
        assert coordinator.running is not None
        coordinator.running.cancel()
        await asyncio.wait({coordinator.running})
        coordinator.running = asyncio.create_task(coordinator.adapter.run())
        assert await preempted(world, coordinator, other) == told
        assert (await coordinator.signal()).uid.startswith(other)
        await coordinator.release(told)
    assert len(world.armada.successors_of(job)) == 1


@pytest.mark.parametrize("text", [b"no text of ours", zlib.compress(b'{"cases":[{}]}'), zlib.compress(b"{")])
async def test_notes_that_cannot_be_read_end_nobody(world: World, text: bytes) -> None:
    job = world.running()
    world.notes.text = text
    async with world.coordinator() as coordinator:
        assert (await preempted(world, coordinator, job)).uid.startswith(job)


async def test_notes_of_another_version_are_not_read_as_ours_and_it_is_said(world: World) -> None:
    job = world.running()
    written = {"version": 2, "streams": [[{"queue": QUEUE, "name": "another"}, "1:0:0:1"]]}
    world.notes.text = zlib.compress(json.dumps(written).encode())
    with structlog.testing.capture_logs() as logs:
        async with world.coordinator() as coordinator:
            assert (await preempted(world, coordinator, job)).uid.startswith(job)
            assert _followed(coordinator) == [JOB_SET]
    (said,) = (one for one in logs if one["event"].startswith("armada's notes cannot be read"))
    assert "version 2, not 1" in said["error"]
    assert said["remedy"]


async def test_who_writes_another_version_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "VERSION", 2)
    notes = Ledger(world.notes)
    running = asyncio.create_task(notes.run())
    await notes.wait_until_persisted()
    running.cancel()
    assert world.notes.text is not None
    assert json.loads(zlib.decompress(world.notes.text))["version"] == 2


async def test_nobody_is_told_before_it_is_noted(world: World) -> None:
    job = world.running()
    world.notes.gate = asyncio.Event()
    async with world.coordinator() as coordinator:
        world.armada.preempt(job)
        await world.notes.entered.wait()
        await asyncio.sleep(0.01)
        assert coordinator.reports.empty()
        world.notes.gate.set()
        await coordinator.signal()


async def test_a_preemption_while_nobody_listened_is_made_good(world: World) -> None:
    """Its pod was not saved; there is an earlier snapshot of the one job, and none of the other."""
    saved, unsaved, foreign = world.submit(variable="md-run-7"), world.submit(), world.submit("other")
    for job in (saved, unsaved):
        world.start(job)
    world.start(foreign, protected=False)
    world.snapshots.add("md-run-7")
    async with world.coordinator():
        await until(lambda: world.notes.text is not None)
    world.now += 60
    world.armada.preempt(saved, unsaved, foreign)
    for job in (saved, unsaved):
        world.delete(job)
    world.now += 60
    async with world.coordinator() as coordinator:
        await until(lambda: len(world.armada.successors_of(saved)) == 1)
        assert coordinator.reports.empty()
    (successor,) = world.armada.successors_of(saved)
    assert world.armada.jobs[successor].job.annotations[names.ID] == "md-run-7"
    assert world.armada.successors_of(unsaved) == []
    assert world.armada.successors_of(foreign) == []


async def test_who_was_preempted_in_another_cluster_is_left_to_that_as_long_as_it_may_save(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart nobody knows where a job ran whose pod is not here."""
    here, there = world.submit(), world.submit(annotations={names.ID: "md", names.EXPECT_SNAPSHOT: "true"})
    world.start(here)
    world.start(there, protected=False)
    async with world.coordinator() as coordinator:
        await until(lambda: _followed(coordinator) == [JOB_SET])
        await coordinator.adapter._ledger.wait_until_persisted()
    world.now += 1
    world.armada.preempt(there)
    preempted_at = world.now
    world.now += 1
    sleep = world.sleep

    async def until_the_other_has_submitted(seconds: float) -> None:
        again = item()
        again.client_id = f"cedana-sched:{there}"
        world.armada.submit(QUEUE, JOB_SET, again)
        await sleep(seconds)

    monkeypatch.setattr(world, "sleep", until_the_other_has_submitted)
    async with world.coordinator() as coordinator:
        await until(lambda: world.armada.successors_of(there) != [])
        await until(lambda: not coordinator.adapter._ledger.cases)
        assert world.now == preempted_at + 240
    assert "submit" not in world.armada.calls
    assert len(world.armada.successors_of(there)) == 1


async def test_a_successor_that_is_preempted_before_it_has_a_pod_comes_back_too(world: World) -> None:
    job = world.running()
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        await coordinator.release(await preempted(world, coordinator, job))
    world.delete(job)
    (successor,) = world.armada.successors_of(job)
    async with world.coordinator() as coordinator:
        assert _followed(coordinator) in ([], [JOB_SET])
        world.armada.lease(successor)
        world.armada.preempt(successor)
        await until(lambda: len(world.armada.successors_of(successor)) == 1)
        assert coordinator.reports.empty()
    (second,) = world.armada.successors_of(successor)
    assert world.armada.jobs[second].job.annotations[names.ID] == job
    assert Identity(NAMESPACE, job) in {one.identity for one in world.snapshots.known}


async def test_a_successor_in_another_cluster_is_its_coordinators(world: World) -> None:
    job = world.running()
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        await coordinator.release(await preempted(world, coordinator, job))
        world.delete(job)
        (successor,) = world.armada.successors_of(job)
        await until(lambda: _followed(coordinator) == [JOB_SET])
        world.armada.run(successor)
        await until(lambda: _followed(coordinator) == [])
        world.armada.preempt(successor)
        other = world.running()
        assert (await preempted(world, coordinator, other)).uid.startswith(other)
    assert world.armada.successors_of(successor) == []


async def test_a_stream_ends_with_the_last_that_it_is_followed_for(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        await until(lambda: _followed(coordinator) == [JOB_SET])
        world.armada.succeed(job)
        world.change(job, phase="Succeeded")
        await until(lambda: _position(coordinator) == world.armada.last_id(QUEUE, JOB_SET))
        assert _followed(coordinator) == [JOB_SET], "as long as there is a pod"
        world.delete(job)
        assert _followed(coordinator) == []

        again = world.running()
        assert (await preempted(world, coordinator, again)).uid.startswith(again)


async def test_a_job_that_got_another_pod_is_listened_for_when_that_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first pod was long gone when the second one went, and its preemption comes late."""
    monkeypatch.setattr(job_sets, "LINGER_SECONDS", 0.05)
    job = world.running()
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        await until(lambda: _followed(coordinator) == [JOB_SET])
        world.delete(job)
        world.start(job)
        await asyncio.sleep(3 * job_sets.LINGER_SECONDS)
        monkeypatch.setattr(job_sets, "LINGER_SECONDS", 600.0)
        world.delete(job)
        assert _followed(coordinator) == [JOB_SET]
        world.armada.preempt(job)
        await until(lambda: len(world.armada.successors_of(job)) == 1)


async def test_a_case_keeps_its_stream_until_it_is_over(world: World) -> None:
    job = world.running()
    async with world.coordinator() as coordinator:
        signal = await preempted(world, coordinator, job)
        world.delete(job)
        assert _followed(coordinator) == [JOB_SET]
        await coordinator.release(signal, Verdict.EVICT)
        assert _followed(coordinator) == []


async def test_who_may_not_watch_is_told_which_permission_is_missing(world: World) -> None:
    job = world.running()
    world.armada.denied.add("watch")
    async with world.coordinator() as coordinator:
        await until(lambda: bool(world.events.told))
        world.armada.denied.clear()
        world.armada.preempt(job)
        await coordinator.signal()
    told = world.events.told[0]
    assert (told.reason, told.warning) == ("ArmadaDenied", True)
    assert told.involved["name"] == f"armada-{job}-0"
    assert f"verb watch on queue {QUEUE}, or watch_all_events" in told.message


async def test_who_may_not_watch_is_told_once_in_a_while(world: World) -> None:
    world.start(world.submit())
    world.armada.denied.add("watch")
    async with world.coordinator():
        await until(lambda: world.armada.calls.count("watch") == 3)
        assert len(world.events.told) == 1
        world.now += job_sets.PUBLISHED_AGAIN_SECONDS
        await until(lambda: len(world.events.told) == 2)


async def test_an_armada_that_is_not_trusted_is_told(world: World) -> None:
    world.start(world.submit())
    world.settings = {"tls": {"serverName": "armada.lab"}}
    async with world.coordinator():
        await until(lambda: bool(world.events.told))
    told = world.events.told[0]
    assert (told.reason, told.warning) == ("ArmadaCertificateInvalid", True)
    assert "leave armada.tls out" in told.message


async def test_a_secret_that_is_not_there_is_told(world: World, tmp_path: Path) -> None:
    world.start(world.submit())
    world.settings = {"auth": {"token": {"file": str(tmp_path / "token")}}}
    async with world.coordinator():
        await until(lambda: bool(world.events.told))
    assert world.events.told[0].reason == "ArmadaDenied"
    assert "armada.auth.token.file" in world.events.told[0].message


async def test_an_armada_that_is_not_there_is_waited_for(world: World) -> None:
    job = world.running()
    world.armada.faults["watch"] = ["before"] * 2
    async with world.coordinator() as coordinator:
        world.armada.preempt(job)
        await coordinator.signal()
    assert world.armada.calls.count("watch") == 3


async def test_events_that_are_written_twice_bring_nobody_back_twice(world: World) -> None:
    job = world.running()
    world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        await coordinator.release(await preempted(world, coordinator, job))
        world.delete(job)
        world.armada.repeat()
        await until(lambda: _has_heard_all(coordinator, world))
    world.now += 60
    world.armada.repeat()
    async with world.coordinator() as coordinator:
        await coordinator.adapter._ready.wait()
        await until(lambda: _has_heard_all(coordinator, world))
        await coordinator.adapter._ledger.wait_until_persisted()
        await until(lambda: not coordinator.adapter._ledger.cases)
        assert coordinator.reports.empty()
    assert len(world.armada.successors_of(job)) == 1
    assert len(world.armada.jobs) == 2
