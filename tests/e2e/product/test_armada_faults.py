"""Parts of Armada die while a job is preempted: it comes back once, and no work is lost or done twice."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from _pytest.mark import ParameterSet

from cedana_sched.model.records import CheckpointStep, HoldStep
from tests.cluster.api.waiting import is_gone
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.jobs import pod_name
from tests.cluster.armada.lines import Lines
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product import armada_database
from tests.e2e.product.armada_database import client_ids_locked
from tests.e2e.product.armada_jobs import Group, complete
from tests.e2e.product.counting import LARGE, begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.phases import reached, released_in_time

pytestmark = [pytest.mark.any_shape, pytest.mark.usefixtures("installed_with_armada")]

_PARTS = ("server", "scheduler", "executor", "eventingester", "pulsar")
_PHASES = {
    "held": ("PreemptionHold", HoldStep.HOLDING),
    "committed": ("Checkpoint", CheckpointStep.COMMITTED),
    "resubmitting": ("PreemptionHold", HoldStep.RELEASING),
}
_RESUBMITTED = "resubmitted"
_COUNTS = 300
"""Half a minute: until a part of Armada has gone that is told to."""
_ONE_BY_ONE = {
    "held": ("server", "eventingester"), "committed": ("executor",), "resubmitting": ("pulsar",),
    _RESUBMITTED: ("scheduler",),
}  # fmt: skip


@asynccontextmanager
async def _counts_once(namespace: Namespace, armada: Armada, image: str) -> AsyncIterator[tuple[Group, str]]:
    """A job that counts, to be preempted in the block; it comes back once, and says each number once."""
    async with Group.of(armada, namespace, "bio") as bio, Following.of(namespace, "md") as output:
        job = await bio.submit("md", image, *counting(mebibytes=LARGE, counts=_COUNTS))
        await begun(output, 0)

        yield bio, job

        successor = await bio.successor(job)
        await bio.succeeded(successor.id)
        assert await complete(output) == [str(number) for number in range(_COUNTS)]
        assert len(output.pods[0]) == 2
        assert set(await bio.places_taken(job)) == {job}  # by several, of which one runs, where Armada answers too late
        await released_in_time(namespace)


def _cases() -> Iterator[ParameterSet]:
    """All parts in one preemption, then each at each phase."""
    yield pytest.param(_ONE_BY_ONE, id="one-by-one")
    for phase, part in itertools.product((*_PHASES, _RESUBMITTED), _PARTS):
        yield pytest.param({phase: (part,)}, id=f"{phase}-{part}", marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("deaths", list(_cases()))
async def test_dead_part_of_armada_costs_no_work(
    deaths: Mapping[str, tuple[str, ...]], namespace: Namespace, toolbox: str, armada: Armada
) -> None:
    async with _counts_once(namespace, armada, toolbox) as (bio, job):
        await bio.preempt(job)
        for phase, parts in deaths.items():
            await (bio.successor(job) if phase == _RESUBMITTED else reached(namespace, *_PHASES[phase]))
            async with armada.without(*parts):
                await reached(namespace, "Checkpoint", CheckpointStep.READY)


@asynccontextmanager
async def _unheard(armada: Armada, part: str, ask: Awaitable[object]) -> AsyncIterator[None]:
    """Something is asked of Armada, which does it; that nobody hears inside the block, for a part is away."""
    async with AsyncExitStack() as away:
        async with armada.paused("scheduler"):
            await ask
            await away.enter_async_context(armada.without(part))
        yield


@pytest.mark.exhaustive  # the parts that publish it die each time
@pytest.mark.parametrize("part", ["server", "eventingester"])
async def test_preemption_that_is_heard_of_late_costs_no_work(
    part: str, namespace: Namespace, toolbox: str, armada: Armada
) -> None:
    async with _counts_once(namespace, armada, toolbox) as (bio, job), _unheard(armada, part, bio.preempt(job)):
        await reached(namespace, "Checkpoint", CheckpointStep.READY)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", ["server", "eventingester"])
async def test_cancellation_of_a_job_set_that_is_heard_of_late_brings_nothing_back(
    part: str, namespace: Namespace, toolbox: str, armada: Armada
) -> None:
    async with Group.of(armada, namespace, "bio") as bio, Following.of(namespace, "md") as output:
        job = await bio.submit("md", toolbox, *counting(counts=None))
        await begun(output, 0)
        async with _unheard(armada, part, bio.cancel_all()):
            await reached(namespace, "Checkpoint", CheckpointStep.READY)
        await released_in_time(namespace)
        await namespace.wait("v1", "Pod", pod_name(job), is_gone)
        assert await bio.places_taken(job) == []


@pytest.mark.parametrize("lost", ["answer", pytest.param("request", marks=pytest.mark.exhaustive)])
async def test_job_comes_back_once_when_the_server_dies_with_its_submission(
    lost: str, namespace: Namespace, toolbox: str, armada: Armada
) -> None:
    mode = armada_database.UNWRITTEN if lost == "answer" else armada_database.UNREAD
    async with _counts_once(namespace, armada, toolbox) as (bio, job):
        said = Lines(armada.machine.log("server"))
        async with client_ids_locked(armada, mode):
            await bio.preempt(job)
            await said.wait_for(r"started call .*=SubmitJobs", within=120)
            if lost == "answer":
                await bio.successor(job)
            async with armada.without("server"):
                pass
