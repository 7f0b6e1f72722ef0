"""One Armada has two clusters that share bucket and key, and each has a namespace of the same name.

Where they share that name, a preempted job goes on in whichever has room; where they do not, each has its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from armada_client.armada.event_pb2 import JobLeasedEvent
from armada_client.armada.submit_pb2 import Job
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
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.s3_server import S3Server
from tests.e2e.product.shared_bucket import shared_bucket

pytestmark = pytest.mark.exhaustive  # each takes minutes, for the sake of one more bucket

_COUNTS = 200
_KEY = "shared-key"


class _ElsewhereError(Exception):
    """Armada does not know yet which cluster takes no more pods."""


@pytest.mark.any_shape
async def test_job_goes_on_in_another_cluster_and_comes_back(
    armada: Armada, cluster: Cluster, api: Api, other_cluster: Cluster, namespace: Namespace, toolbox: str,
    release: Product, s3: S3Server, steps: Steps,
) -> None:  # fmt: skip
    storage = {"sharedNamespaces": [namespace.name]}
    await release.ensure(armada=product_beside(armada, cluster), storage=storage)
    async with (
        _beside(armada, namespace, other_cluster, s3, steps, storage) as elsewhere,
        Group.of(armada, namespace, "bio") as bio,
        Following.of(namespace, "md") as here,
        Following.of(elsewhere, "md") as there,
    ):
        first, second = await _preempted_here(bio, namespace, elsewhere, toolbox, here, there)

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


@pytest.mark.any_shape
async def test_clusters_that_share_no_name_have_each_its_own(
    armada: Armada, cluster: Cluster, api: Api, other_cluster: Cluster, namespace: Namespace, toolbox: str,
    release: Product, s3: S3Server, steps: Steps,
) -> None:  # fmt: skip
    await release.ensure(armada=product_beside(armada, cluster))
    async with (
        _beside(armada, namespace, other_cluster, s3, steps, {}) as elsewhere,
        Group.of(armada, namespace, "bio") as bio,
        Following.of(namespace, "md") as here,
        Following.of(elsewhere, "md") as there,
    ):
        _, second = await _preempted_here(bio, namespace, elsewhere, toolbox, here, there)
        assert there.lines(0)[0] == "0", "it continues nothing of the other cluster's"
        said = await wait_for_messages(elsewhere, there.pods[0][0], "ColdStart")
        assert "the store has none of this namespace" in "".join(said)

        async with _cordoned(elsewhere):
            await _takes_all(cluster, bio, toolbox)
            await bio.preempt(second.id)
            await bio.succeeded((await bio.successor(second.id)).id)

        await complete(here)
        assert here.lines(0) == [str(number) for number in range(_COUNTS)], "what this one has saved is as it was"


@asynccontextmanager
async def _beside(
    armada: Armada, namespace: Namespace, other: Cluster, s3: S3Server, steps: Steps, storage: Mapping[str, Any]
) -> AsyncIterator[Namespace]:
    """The product on another cluster of the same Armada, with the same bucket and key, and a namespace of that name."""
    key, values = await installation.key_of(namespace.api, _KEY), {"sealing": {"existingSecret": _KEY}, **storage}
    async with (
        armada.having(other) as executor,
        other.api() as api,
        Namespace.created(other, api, namespace.name) as elsewhere,
        shared_bucket(armada, namespace.api, executor, api),
        installation.installed(other, api, s3, steps, secrets=[key], storage=values) as theirs,
    ):
        await theirs.ensure(armada=product_beside(armada, other), storage=values)
        yield elsewhere


async def _preempted_here(
    group: Group, namespace: Namespace, elsewhere: Namespace, image: str, here: Following, there: Following
) -> tuple[str, Job]:
    """A job that counts in the first cluster and is preempted, and the one that takes its place in the other."""
    async with _cordoned(elsewhere):
        await _takes_all(namespace.cluster, group, image)
        first = await group.submit("md", image, *counting(counts=_COUNTS))
        await begun(here, 0)
    async with _cordoned(namespace):
        await _takes_all(elsewhere.cluster, group, image)
        await group.preempt(first)
        second = await group.successor(first)
        await begun(there, 0)
    return first, second


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
