"""Armada preempts jobs that are protected: they are saved, come back as jobs of their own, and nothing is lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import cast

import pytest
from armada_client.armada.job_pb2 import JobStatusResponse

from cedana_sched.model.objects import names
from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep, HoldStep
from cedana_sched_armada.job_of_pod import CARDINALITY, EXTERNAL_URI, FIRST, GANG, NUMBER, PREVIOUS
from tests.cluster.api.client import Api
from tests.cluster.api.waiting import is_gone
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.jobs import pod_name
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product import parts
from tests.e2e.product.armada_jobs import SET, Group, complete, half_a_node, named, product_beside, simulation, told
from tests.e2e.product.counting import ALL, LARGE, begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.history import of_ours
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import PHASES, all_at, reached
from tests.e2e.product.store_faults import unreachable

pytestmark = pytest.mark.any_shape

_IN_A_ROW = 3


@pytest.mark.nodes(2)
async def test_what_a_queue_has_beyond_its_share_continues_when_there_is_room_again(
    namespace: Namespace, toolbox: str, installed_with_armada: Product, armada: Armada
) -> None:
    cpu = await half_a_node(namespace)
    async with (
        Group.of(armada, namespace, "bio") as bio, Group.of(armada, namespace, "ml") as ml, AsyncExitStack() as stack
    ):  # fmt: skip
        jobs, output = {}, {}
        for name in ("md-0", "md-1", "md-2", "md-3"):
            job = jobs[name] = await bio.submit(name, toolbox, *counting(), cpu=cpu)
            output[job] = await stack.enter_async_context(Following.of(namespace, name))
        await asyncio.gather(*(begun(following, 0) for following in output.values()))

        owed = await ml.jobs.submit(ml.queue, SET, *[simulation(toolbox, "true", cpu=cpu, env={})] * 2)

        await ml.succeeded(*owed)
        victims = {one.job_id for one in await bio.jobs.preempted(bio.queue, SET, 2)}
        assert victims < output.keys()
        successors = {job: await bio.successor(job) for job in victims}
        await bio.succeeded(*(successors[job].id if job in victims else job for job in output))
        for name, job in jobs.items():
            assert await complete(output[job]) == ALL, name
            assert len(output[job].pods[0]) == (2 if job in victims else 1), "nobody else was disturbed"
        for job, successor in successors.items():
            await _assert_linked(bio, namespace, job, successor.id)
        await all_at(namespace, "Checkpoint", CheckpointStep.READY, count=len(victims))


async def _assert_linked(group: Group, namespace: Namespace, job: str, successor: str) -> None:
    """Each leads to the other, in Armada and in Kubernetes."""
    uri = f"cedana-sched:{job}"
    made = (await group.successor(job)).annotations
    assert {key: made[key] for key in (PREVIOUS, FIRST, NUMBER, EXTERNAL_URI)} == {
        PREVIOUS: job, FIRST: job, NUMBER: "1", EXTERNAL_URI: uri,
    }  # fmt: skip
    found = await group.jobs.client.get_job_status_by_external_job_uri(group.queue, SET, uri)
    states = cast("JobStatusResponse", found).job_states  # the client says that it is another message
    assert set(states) == {successor}
    assert successor in await told(namespace, job, "Resubmitted")


@pytest.mark.nodes(2)
async def test_gang_comes_back_as_a_gang(
    namespace: Namespace, toolbox: str, installed_with_armada: Product, armada: Armada
) -> None:
    cpu = await half_a_node(namespace)
    async with (
        Group.of(armada, namespace, "bio") as bio, Group.of(armada, namespace, "ml") as ml, AsyncExitStack() as stack
    ):  # fmt: skip
        output = {}
        for gang in ("a", "b"):
            for number, job in enumerate(await bio.submit_gang(gang, toolbox, *counting(), cpu=cpu)):
                output[job] = await stack.enter_async_context(Following.of(namespace, f"{gang}-{number}"))
        await asyncio.gather(*(begun(following, 0) for following in output.values()))

        owed = await ml.jobs.submit(ml.queue, SET, *[simulation(toolbox, "true", cpu=cpu, env={})] * 2)

        await ml.succeeded(*owed)
        victims = {one.job_id for one in await bio.jobs.preempted(bio.queue, SET, 2)}
        successors = [await bio.successor(job) for job in victims]
        (gang,) = {made.annotations[GANG] for made in successors}
        assert gang not in {"a", "b"}, "an id of a gang is never used twice"
        assert {made.annotations[CARDINALITY] for made in successors} == {"2"}
        await bio.succeeded(*(made.id for made in successors), *(output.keys() - victims))
        for job, following in output.items():
            assert await complete(following) == ALL
            assert len(following.pods[0]) == (2 if job in victims else 1)


@pytest.mark.exhaustive
async def test_gang_of_which_an_admin_preempts_one_member_comes_back_as_a_gang(
    namespace: Namespace, toolbox: str, installed_with_armada: Product, armada: Armada
) -> None:
    async with Group.of(armada, namespace, "bio") as bio, AsyncExitStack() as stack:
        jobs = await bio.submit_gang("a", toolbox, *counting(), cpu="100m")
        output = [await stack.enter_async_context(Following.of(namespace, f"a-{number}")) for number in range(2)]
        await asyncio.gather(*(begun(following, 0) for following in output))

        await bio.preempt(jobs[0])

        successors = [await bio.successor(job) for job in jobs]
        assert len({made.annotations[GANG] for made in successors}) == 1
        await bio.succeeded(*(made.id for made in successors))
        for following in output:
            assert await complete(following) == ALL
            assert len(following.pods[0]) == 2


@pytest.mark.exhaustive  # with Volcano it is tried each time
@pytest.mark.parametrize("protection", ["variable", "queue"])
async def test_job_that_is_preempted_again_and_again_is_one_piece_of_work(
    protection: str,
    namespace: Namespace,
    toolbox: str,
    installed_with_armada: Product,
    armada: Armada,
    cluster: Cluster,
) -> None:
    async with Group.of(armada, namespace, "bio") as bio, Following.of(namespace, "md") as output:
        if protection == "queue":
            await installed_with_armada.ensure(armada=product_beside(armada, cluster, queues=[bio.queue]))
        env: dict[str, str] | None = {} if protection == "queue" else None
        first = job = await bio.submit("md", toolbox, *counting(counts=200), env=env)
        for number in range(1, _IN_A_ROW + 1):
            await begun(output, 0, counts=40 * number)
            await bio.preempt(job)
            made = await bio.successor(job)
            assert (made.annotations[FIRST], made.annotations[NUMBER]) == (first, str(number))
            assert made.annotations[names.ID] == ("md" if protection == "variable" else first)
            job = made.id

        await bio.succeeded(job)

        assert await complete(output) == [str(number) for number in range(200)]
        assert len(output.pods[0]) == _IN_A_ROW + 1


async def test_job_that_is_cancelled_while_it_is_held_stays_away(
    namespace: Namespace, toolbox: str, installed_with_armada: Product, armada: Armada, api: Api
) -> None:
    async with Group.of(armada, namespace, "bio") as bio, Following.of(namespace, "md") as output:
        job = await bio.submit("md", toolbox, *counting(counts=None))
        await begun(output, 0)
        async with unreachable(api):
            await bio.preempt(job)
            await reached(namespace, "PreemptionHold", HoldStep.HOLDING)

            await bio.cancel(job)

            await all_at(namespace, "PreemptionHold", HoldStep.RELEASED)
            await namespace.wait("v1", "Pod", pod_name(job), is_gone)
        assert "cancelled" in await told(namespace, job, "NotResubmitted")
        assert await bio.places_taken(job) == []


async def test_job_set_that_is_cancelled_while_some_of_it_is_held_stays_away(
    namespace: Namespace, toolbox: str, installed_with_armada: Product, armada: Armada, api: Api
) -> None:
    async with Group.of(armada, namespace, "bio") as bio, Following.of(namespace, "md") as output:
        running, *held = [await bio.submit("md", toolbox, *counting(counts=None), env=named(name)) for name in "abc"]
        await begun(output, 0)
        await namespace.pods("job-name=md", count=3)
        async with unreachable(api):
            for job in held:
                await bio.preempt(job)
            await all_at(namespace, "PreemptionHold", HoldStep.HOLDING, count=len(held))

            await bio.cancel_all()

            await all_at(namespace, "PreemptionHold", HoldStep.RELEASED, count=len(held))
            for job in (running, *held):
                await namespace.wait("v1", "Pod", pod_name(job), is_gone)
        for job in held:
            assert "job set was cancelled" in await told(namespace, job, "NotResubmitted")
            assert await bio.places_taken(job) == []


async def test_cancelled_job_is_let_go_at_once(
    namespace: Namespace, toolbox: str, installed_with_armada: Product, armada: Armada, audit: Audit
) -> None:
    async with Group.of(armada, namespace, "bio") as bio, Following.of(namespace, "md") as output:
        job = await bio.submit("md", toolbox, *counting(counts=None))
        await begun(output, 0)

        await bio.cancel(job)

        await namespace.wait("v1", "Pod", pod_name(job), is_gone)
        patches = audit.writes(namespace=namespace.name, resource="pods", verb="patch")
        assert {names.NOT_PREEMPTED: "true"} in [one.body["metadata"].get("annotations") for one in patches]
        assert await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name) == []


async def test_job_that_asks_for_nothing_is_preempted_as_without_us(
    namespace: Namespace, toolbox: str, installed_with_armada: Product, armada: Armada, audit: Audit
) -> None:
    async with Group.of(armada, namespace, "bio") as bio, Following.of(namespace, "md") as output:
        job = await bio.submit("md", toolbox, *counting(counts=None), env={})
        await begun(output, 0)

        await bio.preempt(job)

        await bio.jobs.preempted(bio.queue, SET, 1)
        await namespace.wait("v1", "Pod", pod_name(job), is_gone)
        assert of_ours(audit, namespace.name) == []
        assert await bio.places_taken(job) == []


_DEATHS = {
    "held": parts.kill_processes,
    "dumping": parts.delete_pods,
    "committed": parts.kill_processes,
    "released": parts.delete_pods,
    "submitted": parts.kill_processes,
}
_ALWAYS = {"submitted"}
"""Phases that are tried each time; of the others Kueue's tests, and Volcano's, try some."""


@pytest.mark.parametrize(
    ("phase", "kill"),
    [
        pytest.param(phase, kill, id=phase, marks=() if phase in _ALWAYS else pytest.mark.exhaustive)
        for phase, kill in _DEATHS.items()
    ],
)
async def test_job_comes_back_once_whenever_the_coordinator_dies(
    phase: str, kill: parts.Kill, namespace: Namespace, toolbox: str, installed_with_armada: Product, armada: Armada,
    cluster: Cluster, api: Api,
) -> None:  # fmt: skip
    await parts.renew(api)
    async with Group.of(armada, namespace, "bio") as bio, Following.of(namespace, "md") as output:
        job = await bio.submit("md", toolbox, *counting(mebibytes=LARGE))
        await begun(output, 0)
        await bio.preempt(job)

        await (bio.successor(job) if phase == "submitted" else reached(namespace, *PHASES[phase]))
        await kill(cluster, api, "coordinator")

        successor = await bio.successor(job)
        await bio.succeeded(successor.id)
        assert await complete(output) == ALL
        assert len(output.pods[0]) == 2
        await parts.whole(api)
        assert await bio.places_taken(job) == [job]
