"""Whoever may create pods may write Armada's labels and annotations on them: it costs nobody else his job."""

from __future__ import annotations

import random

import pytest

from cedana_sched.kube.builtin_kinds import Metadata, Pod, PodSpec, PodStatus
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched_armada import ledger
from cedana_sched_armada.events import JobEvent, JobSet
from cedana_sched_armada.job_of_pod import CARDINALITY, GANG, LONGEST_NAME, gang_id, number_in_annotation
from cedana_sched_armada.ledger import Ledger
from tests.unit.adapters.armada.armada_builders import QUEUE, KeptNotes, World, preempted, rfc3339, until

CONFIG_MAP_BYTES = 1 << 20
"""`ValidateConfigMap` of the API server."""


class LimitedNotes(KeptNotes):
    async def write(self, notes: bytes) -> None:
        if len(notes) > CONFIG_MAP_BYTES:
            raise RetryableError("notes not kept: 422: Too long", remedy="it is tried again")
        await super().write(notes)


def forged(number: int, characters: int) -> Pod:
    """A pod with a name of a job set that cannot be compressed much."""
    name = "".join(random.Random(number).choices([chr(one) for one in range(33, 127)], k=characters))
    metadata = Metadata(
        name=f"p{number}", namespace="tenant-b", uid=f"uid-{number}", resource_version="1",
        labels={"armada_job_id": f"01{number}", "armada_queue_id": QUEUE, names.PROTECTED: "true"},
        annotations={"armada_jobset_id": name, names.ID: "x"}, creation_timestamp=rfc3339(1_800_000_000.0),
    )  # fmt: skip
    return Pod(metadata, PodSpec(), PodStatus(phase="Pending"))


async def comes_back(world: World, *strangers: Pod) -> None:
    """Another tenant's job is preempted, saved, and submitted again."""
    job = world.running()
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        for pod in strangers:
            world.pods._put(pod)
        signal = await preempted(world, coordinator, job)
        await coordinator.release(signal)
        await until(lambda: len(world.armada.successors_of(job)) == 1)


async def test_names_that_fill_the_notes_are_not_followed_and_said(world: World) -> None:
    world.notes = LimitedNotes()
    await comes_back(world, *(forged(number, 250_000) for number in range(6)))
    said = [one for one in world.events.told if one.involved["namespace"] == "tenant-b"]
    assert {one.involved["name"] for one in said} == {f"p{number}" for number in range(6)}
    assert f"more than {LONGEST_NAME} characters" in said[0].message


async def test_job_sets_without_number_leave_room_for_what_is_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MOST_BYTES", 20_000)
    await comes_back(world, *(forged(number, LONGEST_NAME) for number in range(60)))
    assert len(world.notes.text or b"") <= 20_000


async def test_streams_are_noted_as_long_as_there_is_room(world: World) -> None:
    kept = Ledger(world.notes)
    kept.streams = {JobSet(QUEUE, str(number)): "1:0:0:1" for number in range(100)}
    await world.notes.write(ledger.encode_within_limit(kept.streams, [], {}))
    again = Ledger(world.notes)
    await again.load()
    assert again.streams == kept.streams


@pytest.mark.parametrize("digits", [7, 5_000])
async def test_number_that_no_job_has_ends_nobody(world: World, digits: int) -> None:
    job = world.running()
    annotations = world.pod_of(job).metadata.annotations
    world.change(job, annotations={**annotations, GANG: "g", CARDINALITY: "9" * digits})
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        signal = await preempted(world, coordinator, job)
        assert [victim.gang for victim in signal.victims] == [None]


@pytest.mark.parametrize("text", ["", "-1", "1e3", "٣", "9" * 5_000, " 2", "2\n"])
def test_what_is_no_number_counts_as_none(text: str) -> None:
    assert number_in_annotation({CARDINALITY: text}, CARDINALITY) == 0


def test_gang_has_a_name_that_can_be_noted() -> None:
    annotations = {CARDINALITY: "2", GANG: "g" * LONGEST_NAME}
    assert gang_id(annotations) == annotations[GANG]
    assert gang_id({**annotations, GANG: annotations[GANG] + "g"}) is None


async def test_event_that_shows_a_defect_is_not_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = world.running(), world.running()
    async with world.coordinator() as coordinator:
        await until(coordinator.adapter._ready.is_set)
        preemptions = coordinator.adapter._preemptions
        hear, failed = preemptions.process_event, list[str]()

        def broken(job_set: JobSet, heard: JobEvent, *, missed: bool) -> None:
            if heard.job == first:
                failed.append(heard.id)
                raise ValueError("a defect")
            hear(job_set, heard, missed=missed)

        monkeypatch.setattr(preemptions, "process_event", broken)
        world.armada.preempt(first)
        signal = await preempted(world, coordinator, second)
        assert signal.victims[0].workload.name == f"armada-{second}-0"
        assert failed
        assert len(failed) == len(set(failed)), "each event once"
