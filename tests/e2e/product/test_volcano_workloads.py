"""Jobs of Volcano that are preempted by one in a hurry: again and again, MPI in one pod and in two, and unprotected."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep
from tests.cluster.api.client import Object
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.history import of_ours
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import all_at, released_in_time
from tests.e2e.product.programs import assert_same_work, run
from tests.e2e.product.urgency import urgency
from tests.e2e.product.volcano_queues import (
    SCHEDULER,
    WHOLE_NODE,
    completed,
    groups,
    take,
    task,
    vcjob,
    vcjob_of,
)

pytestmark = [pytest.mark.shape("volcano"), pytest.mark.timeout(patient(900))]
"""The image of the programs may have to be built."""

ASKED = {"CEDANA_CHECKPOINT": "md"}

STEPS = 2000
"""Of a job that has started again; the first time it would go on for hours."""

# Both as Volcano's own example of MPI has them; `heat` is the program of our workload.
WORKER = "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -o UsePAM=no -o StrictModes=no"
MASTER = f"""
cd /tmp
worker=$(cat /etc/volcano/worker.host)
until ssh "$worker" true; do sleep 0.2; done
heat=$(find /srv/cache -type f -name heat)
steps=$(( RESTARTS > 0 ? {STEPS} : 100000000 ))
mpirun --allow-run-as-root --mca mpi_yield_when_idle 1 --host "$(hostname):1,$worker:1" -np 2 "$heat" $steps &
running=$!
while sleep 0.2; do tail -qn 1 iterations.log 2>/dev/null; done &
wait $running && tail -n 1 iterations.log
"""


async def test_job_comes_back_as_often_as_it_is_preempted(
    namespace: Namespace, toolbox: str, installed_with_volcano: Product
) -> None:
    async with groups(namespace, "bio"), urgency(namespace) as urgent, Following.of(namespace, "md") as bio:
        work = counting(counts=None)
        await namespace.apply(vcjob("md", "bio", namespace, toolbox, *work, pods=1, cpu=WHOLE_NODE, env=ASKED))
        for number in range(3):
            await begun(bio, 0, counts=len(bio.lines(0)) + 10)
            await take(bio.nodes[0][-1], namespace, toolbox, urgent, f"soon-{number}")
        await enough(namespace, bio, "md", 1, completed=completed)
        assert len(bio.pods[0]) == 4
        assert all(before != after for before, after in itertools.pairwise(bio.nodes[0]))
        assert len(await released_in_time(namespace)) == 3


async def test_job_that_asks_for_nothing_is_preempted_as_without_us(
    namespace: Namespace, toolbox: str, installed_with_volcano: Product, audit: Audit
) -> None:
    async with groups(namespace, "bio"), urgency(namespace) as urgent, Following.of(namespace, "md") as bio:
        work = counting(counts=None)
        await namespace.apply(vcjob("md", "bio", namespace, toolbox, *work, pods=1, cpu=WHOLE_NODE))
        await begun(bio, 0)
        await take(bio.nodes[0][0], namespace, toolbox, urgent)
        await begun(bio, 0, counts=len(bio.lines(0)) + 2)
        _, second = bio.by_pod(0)
        assert second[0] == "0"
        assert of_ours(audit, namespace.name) == []
        refused = [one for one in audit.writes(namespace=namespace.name, user=SCHEDULER) if one.code == 429]
        assert refused == []


@pytest.mark.exhaustive  # without a cluster three generations of it are tried each time
async def test_preempted_mpi_program_ends_in_the_same_bits(
    namespace: Namespace, toolbox: str, programs: str, installed_with_volcano: Product
) -> None:
    async with (
        groups(namespace, "bio"),
        urgency(namespace) as urgent,
        Following.of(namespace, "reference") as reference,
        Following.of(namespace, "preempted") as preempted,
    ):
        long = {"SIZE": "demo"}  # on one CPU, so that Volcano decides before it is done
        mpi = ("taskset", "--cpu-list", "0", *run("mpi"))
        job = vcjob("preempted", "bio", namespace, programs, *mpi, pods=1, cpu=WHOLE_NODE, env={**ASKED, **long})
        await namespace.apply(job)
        await asyncio.wait_for(preempted.said(0, 2), patient(120))
        await take(preempted.nodes[0][0], namespace, toolbox, urgent)
        await namespace.apply(vcjob("reference", "bio", namespace, programs, *mpi, pods=1, cpu="500m", env=long))
        await completed(namespace, "preempted")
        await completed(namespace, "reference")
        await asyncio.wait_for(asyncio.gather(preempted.read(), reference.read()), patient(60))

    assert len(set(preempted.nodes[0])) == 2
    assert_same_work(preempted, reference)


@pytest.mark.exhaustive  # without a cluster it is tried each time
async def test_mpi_over_two_pods_is_not_saved_and_starts_again(
    namespace: Namespace, toolbox: str, programs: str, installed_with_volcano: Product
) -> None:
    """What the ranks say to each other goes over TCP to another pod, which no snapshot could bring back."""
    async with groups(namespace, "bio"), urgency(namespace) as urgent, Following.of(namespace, "md") as master:
        await namespace.apply(mpi_over_ssh("md", namespace, programs))
        await asyncio.wait_for(master.said(0, 10), patient(120))
        await take(master.nodes[0][0], namespace, toolbox, urgent)
        await completed(namespace, "md")
        await asyncio.wait_for(master.read(), patient(60))

        assert steps(master.by_pod(0)[-1])[-1] == STEPS
        await released_in_time(namespace)
        checkpoints = await all_at(namespace, "Checkpoint", CheckpointStep.FAILED)
        told = {event["message"] for event in await namespace.events() if event["reason"] == "CheckpointFailed"}
        for text in (*(one["status"]["message"] for one in checkpoints), *told):
            assert re.search(r"connected to md-(worker|master)-0", text), text
        assert checkpoints
        assert told
        assert await namespace.api.objects(API_VERSION, "Restore", namespace.name) == []


def mpi_over_ssh(name: str, namespace: Namespace, image: str) -> Object:
    """Two ranks in two pods, as Volcano's own example starts them."""
    as_root: dict[str, Any] = {"securityContext": {"runAsUser": 0}}
    master = task("master", name, image, "bash", "-c", MASTER, env=ASKED, **as_root)
    restarts = {"fieldRef": {"fieldPath": "metadata.annotations['volcano.sh/job-version']"}}
    master["template"]["spec"]["containers"][0]["env"].append({"name": "RESTARTS", "valueFrom": restarts})
    master["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    worker = task("worker", f"{name}-worker", image, "bash", "-c", WORKER, env=ASKED, **as_root)
    again = [{"event": "PodEvicted", "action": "RestartJob"}]
    return vcjob_of(
        name, "bio", namespace, master, worker, minAvailable=2, plugins={"ssh": [], "svc": []}, policies=again
    )


def steps(lines: Sequence[str]) -> list[int]:
    return [int(line.split()[0]) for line in lines if line[:1].isdigit()]
