"""What the adapter reads in the event streams of a real Armada, where a cancellation must be told from a preemption."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing

import pytest
from armada_client.typings import EventType

from cedana_sched_armada.armada_client import ArmadaClient
from cedana_sched_armada.events import JobSet, Kind
from cedana_sched_armada.settings import ArmadaSettings
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.jobs import Jobs, pod_spec
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient

pytestmark = pytest.mark.any_shape


async def _kinds(armada: Armada, job_set: JobSet, last: Kind, *jobs: str) -> dict[str, list[Kind]]:
    """What is read of each of these jobs until `last` was read of all."""
    read = defaultdict[str, list[Kind]](list)
    async with (
        asyncio.timeout(patient(30)),
        ArmadaClient.open(ArmadaSettings.read({"url": armada.address})) as server,
        aclosing(server.events(job_set, "", watch=True)) as events,
    ):
        async for heard in events:
            read[heard.job].append(heard.kind)
            if all(last in read[job] for job in jobs):
                break
    return read


async def test_job_is_preempted_cancelled_or_goes_with_its_job_set(
    namespace: Namespace, toolbox: str, armada: Armada
) -> None:
    async with Jobs.opened(armada.address, namespace.name) as jobs:
        queue = await jobs.queue(f"{namespace.name}-a")
        sleeping = pod_spec(toolbox, "python3", "-c", "import time; time.sleep(3600)")
        preempted, cancelled, *rest = await jobs.submit(queue, "set", *[sleeping] * 4)
        await jobs.wait_for(queue, "set", dict.fromkeys((preempted, cancelled, *rest), EventType.running))
        job_set = JobSet(queue, "set")

        await jobs.client.preempt_jobs(queue, "set", preempted)
        assert Kind.CANCEL_REQUESTED not in (await _kinds(armada, job_set, Kind.PREEMPTED, preempted))[preempted]

        await jobs.client.cancel_jobs(queue, "set", cancelled)
        assert Kind.CANCEL_REQUESTED in (await _kinds(armada, job_set, Kind.CANCELLED, cancelled))[cancelled]

        await jobs.client.cancel_jobset(queue, "set", filter_states=[])
        read = await _kinds(armada, job_set, Kind.CANCELLED, *rest)
        for job in rest:
            assert Kind.SET_CANCELLED in read[job], "the scheduler says it of each"
            assert Kind.CANCEL_REQUESTED not in read[job], "nobody has named them"
        assert Kind.CANCELLED not in read[preempted], "it is over for Armada"
