"""LeaderWorkerSet, from its own unmodified chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.cluster.addons import charts
from tests.cluster.addons.addon import version_of
from tests.cluster.addons.deployments import wait_available
from tests.cluster.addons.webhooks import certificate_is_mounted
from tests.cluster.api.admission import webhooks_answer
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.images.archive import BinaryImage
from tests.cluster.steps import Steps
from tests.cluster.together import together

NAMESPACE: Final = "lws-system"
DEPLOYMENT: Final = "lws-controller-manager"
_CHART: Final = "charts/lws"
_SECRET: Final = "lws-webhook-server-cert"  # noqa: S105 - its name
_REPOSITORY: Final = "registry.k8s.io/lws/lws"

_PODS: Final = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
_QUESTION: Final = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "whether-the-webhook-answers", "namespace": "default"},
    "spec": {"leaderWorkerTemplate": {"size": 1, "workerTemplate": _PODS}},
}


@dataclass(frozen=True)
class LeaderWorkerSet:
    """Its controller with one replica."""

    name: str = "lws"
    tools: tuple[str, ...] = ("lws", charts.TOOL)

    def images(self, binaries: Binaries) -> Sequence[BinaryImage]:
        name = f"{_REPOSITORY}:{version_of(binaries, 'lws')}"
        return [BinaryImage(name, {"/manager": binaries.program("lws")}, ["/manager"])]

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        with steps.step("LeaderWorkerSet Available"):
            async with cluster.api() as api:
                await _release(binaries).install(cluster, api, binaries)
                await together(
                    certificate_is_mounted(api, NAMESPACE, _SECRET),
                    wait_available(cluster, api, NAMESPACE, [DEPLOYMENT]),
                )
                await webhooks_answer(api, _QUESTION)


def _release(binaries: Binaries) -> charts.Release:
    image = {"repository": _REPOSITORY, "tag": version_of(binaries, "lws"), "pullPolicy": "Never"}
    values = {"image": {"manager": image}, "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}}
    return charts.Release("lws", NAMESPACE, binaries.files("lws", _CHART), values)
