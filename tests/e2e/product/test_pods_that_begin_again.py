"""A pod whose sandbox is made anew, because it died or its node rebooted, continues from its snapshot once more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import RestoreStep
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.nodes.node import Node
from tests.e2e.product import parts
from tests.e2e.product.counting import BEGUN, begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim

_IS_SANDBOX = 'labels."io.kubernetes.pod.uid"=={uid},labels."io.cri-containerd.kind"==sandbox'


async def kill_sandbox(cluster: Cluster, api: Api, node: Node, uid: str) -> None:
    del cluster, api
    wanted = _IS_SANDBOX.format(uid=uid)
    (sandbox,) = (await node.run("ctr", "--namespace=k8s.io", "containers", "ls", "-q", wanted)).split()
    await node.run("ctr", "--namespace=k8s.io", "task", "kill", "--signal=SIGKILL", sandbox)


async def reboot(cluster: Cluster, api: Api, node: Node, uid: str) -> None:
    del uid
    node.kill()
    await wait_for(api, "v1", "Node", node.name, has_condition("Ready", "Unknown"), within=120)
    await cluster.start_node(node)


def _runs_again(pod: Object) -> bool:
    statuses = pod["status"].get("containerStatuses") or []
    return any(one["name"] == "main" and one["restartCount"] and "running" in one["state"] for one in statuses)


@pytest.mark.any_shape
@pytest.mark.parametrize("happens", [pytest.param(kill_sandbox, marks=pytest.mark.exhaustive), reboot])
async def test_restored_pod_continues_once_more(
    happens: Callable[[Cluster, Api, Node, str], Awaitable[None]], namespace: Namespace, toolbox: str,
    installed_with_kueue: Product, cluster: Cluster, api: Api,
) -> None:  # fmt: skip
    async with groups(namespace), Following.of(namespace, "md") as bio:
        counts = counting(counts=None)
        retried = {"backoffLimit": 6}
        await namespace.apply(
            indexed_job("md", "bio", toolbox, *counts, cpu="600m", fields=retried, restartPolicy="OnFailure")
        )
        await begun(bio, 0)
        await reclaim(namespace, toolbox)
        await begun(bio, 0, counts=len(bio.lines(0)) + 5)
        name = bio.pods[0][-1]
        pod = await namespace.wait("v1", "Pod", name, has_condition("Ready"))
        saved = len(bio.by_pod(0)[0])
        uid = pod["metadata"]["uid"]

        await happens(cluster, api, cluster.nodes[pod["spec"]["nodeName"]], uid)

        again = await namespace.wait("v1", "Pod", name, _runs_again, within=240)
        assert again["metadata"]["uid"] == uid
        lines = (await namespace.kubectl("logs", name, "--container=main")).split()
        assert saved >= BEGUN
        assert int(lines[0]) == saved, "the first pod's last number was one less"
        found = await api.objects(API_VERSION, "Restore", namespace.name)
        steps = {one["spec"]["uid"]: (one["status"]["step"], one["status"]["cold"]) for one in found}
        assert steps == {
            f"restore.{uid}": (RestoreStep.ENDED, False),
            f"restore.{uid}.1": (RestoreStep.RUNNING, False),
        }
        events = {one["reason"] for one in await api.objects("v1", "Event", namespace.name)}
        assert "PodRestarted" in events
        assert "ColdStart" not in events
        await namespace.exec(name, "touch", "/tmp/enough")
        await completed(namespace, "md")
    await parts.whole(api)
