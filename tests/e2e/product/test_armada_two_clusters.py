"""One Armada has two clusters that share bucket, key and a namespace: a preempted job goes on in whichever has room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from armada_client.armada.event_pb2 import JobLeasedEvent
from armada_client.typings import EventType
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from cedana_sched.model.objects.names import API_VERSION
from tests.cluster.api.client import Api
from tests.cluster.armada.armada import Armada
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.steps import Steps
from tests.e2e.product import installation
from tests.e2e.product.armada_jobs import Group, complete, product_beside, simulation
from tests.e2e.product.counting import begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.s3_server import S3Server
from tests.e2e.product.shared_bucket import shared_bucket

_COUNTS = 200
_KEY = "shared-key"


class _ElsewhereError(Exception):
    """Armada does not know yet which cluster takes no more pods."""


@pytest.mark.exhaustive  # it takes minutes, for the sake of one more bucket
@pytest.mark.any_shape
async def test_job_goes_on_in_another_cluster_and_comes_back(
    armada: Armada, cluster: Cluster, api: Api, other_cluster: Cluster, namespace: Namespace, toolbox: str,
    release: Product, s3: S3Server, steps: Steps,
) -> None:  # fmt: skip
    shared = {"sharedNamespaces": [namespace.name]}
    await release.ensure(armada=product_beside(armada, cluster), storage=shared)
    key, storage = await installation.key_of(api, _KEY), {"sealing": {"existingSecret": _KEY}, **shared}
    async with (
        armada.having(other_cluster) as executor,
        other_cluster.api() as other_api,
        Namespace.created(other_cluster, other_api, namespace.name) as elsewhere,
        shared_bucket(armada, api, executor, other_api),
        installation.installed(other_cluster, other_api, s3, steps, secrets=[key], storage=storage) as theirs,
        Group.of(armada, namespace, "bio") as bio,
        Following.of(namespace, "md") as here,
        Following.of(elsewhere, "md") as there,
    ):
        await theirs.ensure(armada=product_beside(armada, other_cluster), storage=storage)
        async with _cordoned(elsewhere):
            await _takes_all(cluster, bio, toolbox)
            first = await bio.submit("md", toolbox, *counting(counts=_COUNTS))
            await begun(here, 0)

        async with _cordoned(namespace):
            await _takes_all(other_cluster, bio, toolbox)
            await bio.preempt(first)
            second = await bio.successor(first)
            await begun(there, 0)

        async with _cordoned(elsewhere):
            await _takes_all(cluster, bio, toolbox)
            await bio.preempt(second.id)
            third = await bio.successor(second.id)
            await bio.succeeded(third.id)

        assert await bio.places_taken(first) == [first, second.id], "the coordinators of both have heard of all"
        await complete(here)
        (begins, ends), between = here.by_pod(0), await complete(there)
        assert [*begins, *between, *ends] == [str(number) for number in range(_COUNTS)]
        assert begins
        assert between
        assert ends
        for one in (namespace, elsewhere):
            (checkpoint,) = await one.api.objects(API_VERSION, "Checkpoint", one.name)
            assert checkpoint["status"]["phase"] == "Ready"


@asynccontextmanager
async def _cordoned(namespace: Namespace) -> AsyncIterator[None]:
    """No node of its cluster takes pods inside the block."""
    nodes = namespace.cluster.nodes
    await namespace.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        await namespace.kubectl("uncordon", *nodes)


async def _takes_all(cluster: Cluster, group: Group, image: str) -> None:
    """Wait until Armada gives jobs to this cluster alone: executors tell it of their nodes once a second."""
    probes = f"probes-{cluster.place.name}"
    async for attempt in AsyncRetrying(retry=retry_if_exception_type(_ElsewhereError), stop=stop_after_attempt(20)):
        with attempt:
            spec = simulation(image, "true", cpu="100m", env={})
            [probe] = await group.jobs.submit(group.queue, probes, spec)
            leased = await group.jobs.wait_for(group.queue, probes, {probe: EventType.leased})
            message = leased[probe].message
            assert isinstance(message, JobLeasedEvent)
            if message.cluster_id != cluster.place.name:
                raise _ElsewhereError
