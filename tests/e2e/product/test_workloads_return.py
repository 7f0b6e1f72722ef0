"""Real programs that Kueue preempts end in the very bits of a run that nobody interrupted."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.programs import assert_same_work, run
from tests.e2e.product.queues import QUEUE_LABEL, groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim

pytestmark = [pytest.mark.any_shape, pytest.mark.timeout(patient(900))]
"""The image may have to be built."""


def program(name: str, image: str, workload: str) -> Object:
    """A Job that runs a workload; it has more than belongs to bio."""
    return indexed_job(name, "bio", image, *run(workload), cpu="600m")


def undisturbed(body: Object) -> Object:
    """The same Job, in no queue and not protected."""
    del body["metadata"]["labels"][QUEUE_LABEL]
    body["spec"]["suspend"] = False
    return body


@pytest.mark.parametrize(
    "workload",
    [
        "gromacs",
        pytest.param("mpi", marks=pytest.mark.exhaustive),  # without a cluster it is tried each time
        pytest.param("xgboost", marks=pytest.mark.exhaustive),
    ],
)
async def test_preempted_program_ends_in_the_same_bits(
    workload: str, namespace: Namespace, toolbox: str, programs: str, installed_with_kueue: Product
) -> None:
    async with (
        groups(namespace),
        Following.of(namespace, "reference") as reference,
        Following.of(namespace, "preempted") as preempted,
    ):
        await namespace.apply(program("preempted", programs, workload))
        await asyncio.wait_for(preempted.said(0, 2), patient(120))
        await reclaim(namespace, toolbox)
        await namespace.apply(undisturbed(program("reference", programs, workload)))
        await completed(namespace, "preempted")
        await completed(namespace, "reference")
        await asyncio.wait_for(asyncio.gather(preempted.read(), reference.read()), patient(60))

    assert len(preempted.nodes[0]) == 2
    assert_same_work(preempted, reference)
