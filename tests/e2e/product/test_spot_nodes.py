"""A provider's notice is heard by the node's agent: pods are saved, continue elsewhere, and the node is cordoned."""

from __future__ import annotations

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION, PROTECT
from tests.cluster.api.waiting import wait_for
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.installation import Product
from tests.e2e.product.owners import continued, counting_pod, plain_job
from tests.e2e.product.spot_notices import INTERRUPTIONS, announced, is_cordoned_by_us

pytestmark = [pytest.mark.nodes(2), pytest.mark.any_shape]


@pytest_asyncio.fixture(loop_scope="session")
async def protected(namespace: Namespace, release: Product) -> Namespace:
    """A namespace that protects all of its pods, on nodes whose provider is AWS."""
    await release.ensure(kubernetes={"enabled": True}, agent={"interruptions": INTERRUPTIONS})
    await namespace.kubectl("label", "namespace", namespace.name, f"{PROTECT}=true")
    return namespace


async def test_work_continues_elsewhere_after_a_spot_notice(protected: Namespace, toolbox: str) -> None:
    body = plain_job(toolbox)
    async with counting_pod(protected, body) as following:
        node = following.nodes[0][0]
        async with announced(protected, toolbox, node, patient(60)):
            await continued(protected, following, body)
            assert following.nodes[0][1] != node
            await wait_for(protected.api, "v1", "Node", node, is_cordoned_by_us, within=60)
    (checkpoint,) = await protected.api.objects(API_VERSION, "Checkpoint", protected.name)
    assert (checkpoint["status"]["phase"], checkpoint["spec"]["reason"]) == ("Ready", "NodeTermination")
