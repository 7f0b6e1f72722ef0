"""JobSet, from its own unmodified chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

NAMESPACE = "jobset-system"
DEPLOYMENT = "jobset-controller"
_CHART = "charts/jobset"
_SECRET = "jobset-webhook-server-cert"  # noqa: S105 - its name
_REPOSITORY = "registry.k8s.io/jobset/jobset"

_QUESTION = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "whether-the-webhook-answers", "namespace": "default"},
    "spec": {"replicatedJobs": [{"name": "none", "template": {"spec": {"template": {"spec": {"containers": []}}}}}]},
}


@dataclass(frozen=True)
class JobSet:
    """JobSet with one replica.

    Args:
        values: merged over the chart's values.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    name: str = "jobset"
    tools: tuple[str, ...] = ("jobset", charts.TOOL)

    def images(self, binaries: Binaries) -> Sequence[BinaryImage]:
        name = f"{_REPOSITORY}:{version_of(binaries, 'jobset')}"
        return [BinaryImage(name, {"/manager": binaries.program("jobset")}, ["/manager"])]

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        with steps.step("JobSet Available"):
            async with cluster.api() as api:
                await self.release(binaries).install(cluster, api, binaries)
                await together(
                    certificate_is_mounted(api, NAMESPACE, _SECRET),
                    wait_available(cluster, api, NAMESPACE, [DEPLOYMENT]),
                )
                await webhooks_answer(api, _QUESTION)

    def release(self, binaries: Binaries) -> charts.Release:
        """What Helm is told."""
        chart = binaries.files("jobset", _CHART)
        values = {
            "image": {"repository": _REPOSITORY, "tag": version_of(binaries, "jobset"), "pullPolicy": "Never"},
            "controller": {
                "leaderElection": {"enable": False},  # one replica needs to wait for none
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": None, "memory": "512Mi"}},
            },
        }
        return charts.Release("jobset", NAMESPACE, chart, charts.overlaid(values, self.values))
