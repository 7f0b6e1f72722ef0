"""Kueue, from its own unmodified chart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.cluster.addons import charts
from tests.cluster.addons.addon import version_of
from tests.cluster.addons.deployments import wait_available
from tests.cluster.addons.webhooks import certificate_is_mounted
from tests.cluster.api.admission import webhooks_answer
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.images.archive import BinaryImage
from tests.cluster.kind_config.merge_patch import merge
from tests.cluster.steps import Steps
from tests.cluster.together import together

NAMESPACE = "kueue-system"
DEPLOYMENT = "kueue-controller-manager"
_SECRET = "kueue-webhook-server-cert"  # noqa: S105 - its name
_REPOSITORY = "registry.k8s.io/kueue/kueue"

_VALUES: Mapping[str, Any] = {
    "controllerManager": {
        # nobody else may hold quotas while another configuration takes over
        "strategy": {"type": "Recreate"},
        "manager": {
            "image": {"repository": _REPOSITORY, "pullPolicy": "Never"},
            # a test's quotas and nodes are not to be measured by what Kueue takes
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": None, "memory": "512Mi"}},
        },
        "readinessProbe": {"initialDelaySeconds": 0, "periodSeconds": 1},
    }
}
_CONFIGURATION: Mapping[str, Any] = {"leaderElection": {"leaderElect": False}}

_QUESTION = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "whether-the-webhook-answers"},
}


@dataclass(frozen=True)
class Kueue:
    """Kueue with one replica.

    Args:
        values: merged over the chart's values, such as feature gates.
        configuration: merged over the Configuration that is the chart's default, such as
            `{"fairSharing": {...}}` or `{"integrations": {"frameworks": ["batch/job"]}}`.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    name: str = "kueue"
    tools: tuple[str, ...] = ("kueue", charts.TOOL)

    def images(self, binaries: Binaries) -> Sequence[BinaryImage]:
        name = f"{_REPOSITORY}:{version_of(binaries, 'kueue')}"
        return [BinaryImage(name, {"/manager": binaries.program("kueue")}, ["/manager"])]

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        with steps.step("Kueue Available"):
            async with cluster.api() as api:
                await self.release(binaries).install(cluster, api, binaries)
                await together(
                    certificate_is_mounted(api, NAMESPACE, _SECRET),
                    wait_available(cluster, api, NAMESPACE, [DEPLOYMENT]),
                )
                await webhooks_answer(api, _QUESTION)

    def release(self, binaries: Binaries) -> charts.Release:
        """What Helm is told."""
        chart = binaries.files("kueue", "charts/kueue")
        default = yaml.safe_load(charts.default_values(chart)["managerConfig"]["controllerManagerConfigYaml"])
        configuration = merge(merge(default, _CONFIGURATION), self.configuration)
        written = {
            "controllerManager": {"manager": {"image": {"tag": version_of(binaries, "kueue")}}},
            "managerConfig": {"controllerManagerConfigYaml": json.dumps(configuration)},
        }
        values = charts.overlaid(charts.overlaid(_VALUES, written), self.values)
        return charts.Release("kueue", NAMESPACE, chart, values)
