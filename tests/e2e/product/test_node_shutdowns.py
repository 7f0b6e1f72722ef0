"""A node's machine is shut down: the kubelet ends its pods without deleting them, and their work goes on elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION, CORDONED, NODE_INTERRUPTION, PROTECT
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.e2e.product import parts, s3_server
from tests.e2e.product.cordoning import cordoned
from tests.e2e.product.installation import Product
from tests.e2e.product.logind import graceful_shutdown_enabled, remove_ended_pods
from tests.e2e.product.owners import OWNERS, continued, counting_pod

pytestmark = [pytest.mark.nodes(2), pytest.mark.any_shape, pytest.mark.exhaustive]


@pytest_asyncio.fixture(loop_scope="session")
async def protected(namespace: Namespace, release: Product) -> Namespace:
    """A namespace that protects all of its pods."""
    await release.ensure(kubernetes={"enabled": True})
    await namespace.kubectl("label", "namespace", namespace.name, f"{PROTECT}=true")
    return namespace


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
async def test_work_continues_elsewhere_when_its_node_shuts_down(
    kind: str, protected: Namespace, toolbox: str, cluster: Cluster, api: Api
) -> None:
    make: Callable[[str], Object] = OWNERS[kind]
    body = make(toolbox)
    (server,) = await api.objects("v1", "Pod", s3_server.NAMESPACE)
    async with cordoned(protected, server["spec"]["nodeName"]):  # the snapshot's bucket would end as well
        await protected.apply(body)
        await protected.pods("app=md", count=1)
    async with counting_pod(protected, body) as following:
        node = cluster.nodes[following.nodes[0][0]]
        periods = {"shutdownGracePeriod": "1m30s", "shutdownGracePeriodCriticalPods": "30s"}
        async with graceful_shutdown_enabled(node, **periods) as logind:
            await _has_admitted_its_pods(protected, toolbox, node.name)
            await logind.begin_shutdown()
            await continued(protected, following, body)
            assert following.nodes[0][1] != node.name
            await logind.wait_said("released")
            await logind.cancel_shutdown()
        await remove_ended_pods(api, node)
        await parts.whole(api)
        await wait_for(api, "v1", "Node", node.name, _is_left_alone, within=60)
    (checkpoint,) = await api.objects(API_VERSION, "Checkpoint", protected.name)
    assert (checkpoint["status"]["phase"], checkpoint["spec"]["reason"]) == ("Ready", "NodeShutdown")


async def _has_admitted_its_pods(namespace: Namespace, toolbox: str, node: str) -> None:
    """Wait until a restarted kubelet runs a new pod: it ends no pod that it has not admitted since its start."""
    await namespace.apply(
        pod("admitted", container(toolbox, "true"), nodeName=node, tolerations=[{"operator": "Exists"}])
    )
    await namespace.wait("v1", "Pod", "admitted", lambda body: body["status"].get("phase") == "Succeeded")


def _is_left_alone(node: Object) -> bool:
    annotations = node["metadata"].get("annotations", {})
    is_cordoned = node["spec"].get("unschedulable", False)
    return NODE_INTERRUPTION not in annotations and CORDONED not in annotations and not is_cordoned
