"""A preempted gang comes back whole, or not at all."""

from __future__ import annotations

from cedana_sched.model.objects import names
from cedana_sched.model.preemption import Verdict
from tests.unit.adapters.armada.armada_builders import World, rfc3339, until
from tests.unit.adapters.armada.fake_armada import GANG


async def test_a_gang_comes_back_whole_and_under_a_new_id(world: World) -> None:
    jobs = world.gang(3)
    for job in jobs[:2]:
        world.start(job)
    world.start(jobs[2], protected=False)
    async with world.coordinator() as coordinator:
        world.armada.preempt(*jobs)
        signal = await coordinator.signal()
        assert len(signal.victims) == 2
        await coordinator.release(signal)

    made = [world.armada.jobs[one].job for job in jobs for one in world.armada.successors_of(job)]
    assert len(made) == 3, "the one that is not protected as well: the others cannot start without it"
    assert len({one.annotations[GANG] for one in made}) == 1
    assert made[0].annotations[GANG] != "gang-1"
    assert {one.annotations["armadaproject.io/gangCardinality"] for one in made} == {"3"}
    assert {one.labels[GANG] for one in made} == {made[0].annotations[GANG]}
    assert [one.annotations.get(names.ID) for one in made] == [*jobs[:2], None]
    assert world.armada.calls.count("submit") == 1, "all at once"


async def test_what_is_left_of_an_earlier_gang_of_the_same_name_does_not_come_back(world: World) -> None:
    earlier, jobs = world.gang(2), world.gang(2)
    for job in (*earlier, *jobs):
        world.start(job)
    for job in earlier:
        world.change(job, phase="Failed")
    async with world.coordinator() as coordinator:
        world.armada.preempt(*jobs)
        await coordinator.release(await coordinator.signal())
    assert [len(world.armada.successors_of(job)) for job in (*earlier, *jobs)] == [0, 0, 1, 1]
    (successor,) = world.armada.successors_of(jobs[0])
    assert world.armada.jobs[successor].job.annotations["armadaproject.io/gangCardinality"] == "2"


async def test_a_gang_whose_members_fail_as_they_are_deleted_comes_back_whole(world: World) -> None:
    """They end at SIGTERM, before it is heard that they were preempted."""
    jobs = world.gang(2)
    for job in jobs:
        world.start(job)
        world.snapshots.add(job)
    async with world.coordinator() as coordinator:
        for job in jobs:
            world.change(job, deletion_timestamp=rfc3339(world.now + 60), phase="Failed")
        world.armada.preempt(*jobs)
        await until(lambda: [len(world.armada.successors_of(job)) for job in jobs] == [1, 1])
        assert coordinator.reports.empty()


async def test_a_gang_without_a_snapshot_of_each_does_not_come_back(world: World) -> None:
    jobs = world.gang(2)
    for job in jobs:
        world.start(job)
    world.snapshots.add(jobs[0])
    async with world.coordinator() as coordinator:
        world.armada.preempt(*jobs)
        await coordinator.release(await coordinator.signal(), Verdict.EVICT)
    assert [world.armada.successors_of(job) for job in jobs] == [[], []]
