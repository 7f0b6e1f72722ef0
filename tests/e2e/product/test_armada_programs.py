"""A real program that Armada preempts ends in the very bits of a run that nobody interrupted."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.armada.armada import Armada
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.armada_jobs import Group, complete
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.programs import assert_same_work, run

pytestmark = [pytest.mark.any_shape, pytest.mark.timeout(patient(900))]
"""The image may have to be built."""


@pytest.mark.exhaustive  # without a cluster the same program is tried each time
async def test_pod_of_two_mpi_ranks_ends_in_the_same_bits(
    namespace: Namespace, programs: str, installed_with_armada: Product, armada: Armada
) -> None:
    async with (
        Group.of(armada, namespace, "bio") as bio,
        Following.of(namespace, "reference") as reference,
        Following.of(namespace, "preempted") as preempted,
    ):
        job = await bio.submit("preempted", programs, *run("mpi"), cpu="1")
        await asyncio.wait_for(preempted.said(0, 2), patient(120))
        await bio.preempt(job)
        successor = await bio.successor(job)
        undisturbed = await bio.submit("reference", programs, *run("mpi"), cpu="1", env={})
        await bio.succeeded(successor.id, undisturbed)
        await complete(preempted)
        await complete(reference)

    assert len(preempted.nodes[0]) == 2
    assert_same_work(preempted, reference)
