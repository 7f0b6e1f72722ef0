"""Armada works here as anywhere: jobs of its queues run as pods on the nodes, and a queue gets back what it is owed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from armada_client.typings import EventType

from tests.cluster.armada import rights
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.jobs import Jobs, pod_name, pod_spec
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace

pytestmark = pytest.mark.any_shape


@pytest_asyncio.fixture(loop_scope="session")
async def jobs(armada: Armada, namespace: Namespace) -> AsyncIterator[Jobs]:
    """Jobs of the test's namespace."""
    async with Jobs.opened(armada.address, namespace.name) as jobs:
        yield jobs


async def test_job_runs_to_its_end(namespace: Namespace, toolbox: str, jobs: Jobs, audit: Audit) -> None:
    queue = await jobs.queue(f"{namespace.name}-a")

    [job] = await jobs.submit(queue, "work", pod_spec(toolbox, "python3", "-c", "print('done')"))

    await jobs.wait_for(queue, "work", {job: EventType.succeeded})
    assert await namespace.logs(pod_name(job)) == "done\n"
    [created] = audit.writes(verb="create", resource="pods", namespace=namespace.name)
    assert created.user == rights.USER


async def test_queue_preempts_what_another_has_beyond_its_share(namespace: Namespace, toolbox: str, jobs: Jobs) -> None:
    nodes = [node for node in await namespace.api.objects("v1", "Node") if not node["spec"].get("taints")]
    cpu = f"{min(int(node['status']['allocatable']['cpu']) for node in nodes) * 400}m"  # two fit a node, three do not
    first, second = await jobs.queue(f"{namespace.name}-a"), await jobs.queue(f"{namespace.name}-b")
    sleeping = pod_spec(toolbox, "python3", "-c", "import time; time.sleep(3600)", cpu=cpu)
    fill = await jobs.submit(first, "fill", *[sleeping] * 2 * len(nodes))
    await jobs.wait_for(first, "fill", dict.fromkeys(fill, EventType.running))

    owed = await jobs.submit(second, "owed", *[pod_spec(toolbox, "true", cpu=cpu)] * len(fill))

    await jobs.wait_for(second, "owed", dict.fromkeys(owed, EventType.succeeded))
    victims = await jobs.preempted(first, "fill", len(fill) // 2)
    assert {victim.job_id for victim in victims} < set(fill)
    assert {victim.preempting_job_id for victim in victims} <= set(owed)
    assert all("fair share" in victim.reason for victim in victims)
