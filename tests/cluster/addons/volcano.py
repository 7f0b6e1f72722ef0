"""Volcano, from its own unmodified chart.

The chart's hook makes the webhooks' certificate with a shell, openssl and kubectl inside the image. The images here
hold one program each, so the hook is left out and the same Secret is made by the cluster's own authority.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubernetes_asyncio.client import ApiException

from tests.cluster.addons import charts
from tests.cluster.addons.addon import version_of
from tests.cluster.addons.deployments import wait_available
from tests.cluster.api.admission import webhooks_answer
from tests.cluster.api.client import Api
from tests.cluster.api.waiting import WaitedInVainError, wait_for
from tests.cluster.binaries.build import Binaries
from tests.cluster.cache import digest
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.images.archive import BinaryImage
from tests.cluster.steps import Steps

NAMESPACE = "volcano-system"
DEPLOYMENTS = ("volcano-admission", "volcano-controllers", "volcano-scheduler")
_RELEASE = "volcano"
_CHART = "installer/helm/chart/volcano"
_REGISTRY = "docker.io"
_PROGRAMS = ("vc-scheduler", "vc-controller-manager", "vc-webhook-manager")
_SECRET = "volcano-admission-secret"  # noqa: S105 - its name

_BATCH = "batch.volcano.sh/v1alpha1"
_TRIES = 5

_QUESTION = {
    "apiVersion": "scheduling.volcano.sh/v1beta1",
    "kind": "Queue",
    "metadata": {"name": "whether-the-webhook-answers"},
    "spec": {"weight": 1},
}


@dataclass(frozen=True)
class Volcano:
    """Volcano's scheduler, controllers and webhooks with one replica each.

    Args:
        scheduler: the scheduler's configuration (`actions`, `tiers`) as YAML; the chart's own when empty. To change it
            on a cluster that has Volcano, install it again.
        values: merged over the chart's values.
    """

    scheduler: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    name: str = "volcano"
    tools: tuple[str, ...] = ("volcano", charts.TOOL)

    def images(self, binaries: Binaries) -> Sequence[BinaryImage]:
        version = version_of(binaries, "volcano")
        return [
            BinaryImage(
                f"{_REGISTRY}/volcanosh/{name}:{version}",
                {f"/{name}": binaries.program(name)},
                [f"/{name}"],  # the chart gives arguments alone
            )
            for name in _PROGRAMS
        ]

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        with steps.step("Volcano Available"):
            async with cluster.api() as api:
                await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
                await _ensure_certificate(cluster, api)
                await self.release(binaries).install(cluster, api, binaries)
                await wait_available(cluster, api, NAMESPACE, DEPLOYMENTS)
                await webhooks_answer(api, _QUESTION)
                await _default_queue_is_open(cluster, api)
                await _jobs_get_their_pods(api)

    def release(self, binaries: Binaries) -> charts.Release:
        """What Helm is told."""
        chart = binaries.files("volcano", _CHART)
        values = {
            "basic": {
                "image_registry": _REGISTRY,
                "image_tag_version": version_of(binaries, "volcano"),
                "image_pull_policy": "Never",
                "admission_secret_name": _SECRET,
            },
            "custom": {
                "controller_kube_api_qps": 500,
                "controller_kube_api_burst": 1000,
                "scheduler_config_override": self.scheduler or None,
                # a scheduler would see another configuration only when its volume is brought up to date, a minute later
                "scheduler_podLabels": {"configuration": digest(self.scheduler)},
            },
        }
        return charts.Release(_RELEASE, NAMESPACE, chart, charts.overlaid(values, self.values), hooks=False)


async def _ensure_certificate(cluster: Cluster, api: Api) -> None:
    try:
        await api.get("v1", "Secret", _SECRET, NAMESPACE)
    except ApiException as error:
        if error.status != 404:
            raise
    else:
        return
    authority = cluster.control_plane.authority()
    service = f"{_RELEASE}-admission-service.{NAMESPACE}.svc"
    pair = await asyncio.to_thread(
        authority.issue, "volcano-admission", user=service, names=[service, f"{service}.cluster.local"]
    )
    files = {"ca.crt": authority.pair.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
    await api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": _SECRET, "namespace": NAMESPACE},
            "data": {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()},
        }
    )


async def _default_queue_is_open(cluster: Cluster, api: Api) -> None:
    """Without it, Jobs that name no queue are refused."""

    def is_open(queue: dict[str, Any]) -> bool:
        return bool(queue.get("status", {}).get("state") == "Open")

    try:
        await wait_for(api, "scheduling.volcano.sh/v1beta1", "Queue", "default", is_open, within=60)
    except WaitedInVainError as error:
        raise ClusterError(
            f"Volcano did not open its default queue: {error}",
            remedy=f"see `kubectl -n {NAMESPACE} logs deploy/volcano-controllers`",
        ) from None


async def _jobs_get_their_pods(api: Api) -> None:
    """Controllers that have just begun may hear of a PodGroup only when it is let in already, and then do nothing.

    They compare phases of PodGroups that they know (pkg/controllers/job, updatePodGroup), so that such a job waits for
    ever. Once one has got its pod, they listen.
    """
    for number in range(_TRIES):
        name = f"whether-jobs-get-pods-{number}"
        template = {
            "spec": {"containers": [{"name": "main", "image": "none"}], "nodeSelector": {"whether": "jobs-get-pods"}}
        }
        tasks = [{"name": "probe", "replicas": 1, "template": template}]
        spec = {"schedulerName": "volcano", "minAvailable": 1, "queue": "default", "tasks": tasks}
        await api.apply({"apiVersion": _BATCH, "kind": "Job", "metadata": {"name": name}, "spec": spec}, NAMESPACE)
        try:
            await wait_for(api, "v1", "Pod", f"{name}-probe-0", lambda _: True, namespace=NAMESPACE, within=10)
        except WaitedInVainError:
            continue
        finally:
            await api.delete(_BATCH, "Job", name, NAMESPACE)
        return
    raise ClusterError(
        f"Volcano made no pod for any of {_TRIES} jobs",
        remedy=f"see `kubectl -n {NAMESPACE} logs deploy/volcano-controllers`",
    )
