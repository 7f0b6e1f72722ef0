"""The product goes, or another version of it comes, while an eviction is held: work goes on as if it had never been."""

from __future__ import annotations

import asyncio

import pytest
from kubernetes_asyncio.client import ApiException

from cedana_sched.model.objects.names import API_VERSION, GROUP, RESTORE_GATE
from cedana_sched.model.records import CheckpointStep
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import ALL, COUNTS, LARGE, begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import reached
from tests.e2e.product.queues import API, groups, indexed_job
from tests.e2e.product.reclaiming import completed, reclaim
from tests.e2e.product.rendering import RELEASE

pytestmark = pytest.mark.any_shape

_PODS = 4


async def _begin(namespace: Namespace, image: str, bio: Following, counts: int | None) -> asyncio.Task[None]:
    """A Job of bio that runs, and one of ml that wants its place back, until the first dump is under way."""
    await namespace.apply(indexed_job("md", "bio", image, *counting(mebibytes=LARGE, counts=counts), pods=_PODS))
    await begun(bio, *range(_PODS), counts=10)
    reclaiming = asyncio.create_task(reclaim(namespace, image))
    await reached(namespace, "Checkpoint", CheckpointStep.FREEZING)
    return reclaiming


async def test_uninstalled_in_the_middle_of_a_hold_nothing_of_ours_is_left(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        # it ignores SIGTERM, and nobody ends it after its own grace any more
        reclaiming = await _begin(namespace, toolbox, bio, COUNTS)
        await installed_with_kueue.uninstall()
        await reclaiming
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))

        for index in range(_PODS):
            assert bio.lines(index)[-COUNTS:] == ALL, f"index {index}"
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            with pytest.raises(ApiException, match="404"):
                await api.get("admissionregistration.k8s.io/v1", kind, RELEASE)
        assert [word for node in await api.objects("v1", "Node") for word in _words(node)] == []
        for node in cluster.nodes.values():
            assert await node.run("sh", "-c", "grep -rl cedana /etc/containerd || true") == ""
            assert await node.run("sh", "-c", "ls /opt/cedana-sched 2>/dev/null || true") == ""
        for name in ("bio", "ml"):
            queue = await api.get(API, "ClusterQueue", f"{namespace.name}-{name}")
            assert not queue["spec"].get("admissionChecksStrategy", {}).get("admissionChecks")
        for kind in ("CheckpointStorage", "CheckpointPolicy"):
            assert await api.objects(API_VERSION, kind) == []
        assert await api.objects(API_VERSION, "Checkpoint", namespace.name), "what describes snapshots stays"

        await namespace.apply(indexed_job("after", "bio", toolbox, "true"))
        await namespace.wait("batch/v1", "Job", "after", has_condition("Complete"), within=60)
        (pod,) = await namespace.pods("job-name=after", phase="Succeeded")
        assert GROUP not in str(pod)


async def test_upgraded_in_the_middle_of_a_hold_nothing_is_lost(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product
) -> None:
    changed = {"tests.cluster/upgrade": namespace.name}
    async with groups(namespace), Following.of(namespace, "md") as bio:
        reclaiming = await _begin(namespace, toolbox, bio, None)
        await installed_with_kueue.install(
            kueue={"enabled": True},
            coordinator={"podAnnotations": changed},
            webhooks={"podAnnotations": changed},
            agent={"podAnnotations": changed},
        )
        await reclaiming
        await enough(namespace, bio, "md", _PODS)

        for pod in await namespace.api.objects("v1", "Pod", namespace.name):
            assert RESTORE_GATE not in str(pod["spec"].get("schedulingGates", ()))


def _words(node: Object) -> list[str]:
    """Every word of ours on a node."""
    metadata = node["metadata"]
    taints = [taint["key"] for taint in node["spec"].get("taints", ())]
    return [
        f"{metadata['name']}: {word}"
        for word in (*metadata.get("labels", {}), *metadata.get("annotations", {}), *taints)
        if GROUP in word
    ]
