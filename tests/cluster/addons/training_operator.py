"""Kubeflow's training operator, from its own unmodified manifests, for PyTorchJobs alone.

Its MPIJob has the name of the MPI operator's, and another version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from tests.cluster.addons.addon import version_of
from tests.cluster.addons.deployments import wait_available
from tests.cluster.addons.webhooks import certificate_is_mounted
from tests.cluster.api.admission import webhooks_answer
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition, wait_for
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.commands import run
from tests.cluster.images.archive import BinaryImage
from tests.cluster.steps import Steps
from tests.cluster.together import together

NAMESPACE: Final = "kubeflow"
DEPLOYMENT: Final = "training-operator"
_OVERLAY: Final = "overlays/standalone"
_SECRET: Final = "training-operator-webhook-cert"  # noqa: S105 - its name
_REPOSITORY: Final = "ghcr.io/kubeflow/training-v1/training-operator"
_KIND: Final = "pytorchjobs.kubeflow.org"

_PODS: Final = {"spec": {"containers": [{"name": "pytorch", "image": "none"}]}}
_QUESTION: Final = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "whether-the-webhook-answers", "namespace": "default"},
    "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": _PODS}}},
}


@dataclass(frozen=True)
class TrainingOperator:
    """The operator with one replica."""

    name: str = "training-operator"
    tools: tuple[str, ...] = ("training-operator",)

    def images(self, binaries: Binaries) -> Sequence[BinaryImage]:
        return [BinaryImage(_image(binaries), {"/manager": binaries.program("training-operator")}, ["/manager"])]

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        with steps.step("training operator Available"):
            async with cluster.api() as api:
                for body in await _objects(cluster, binaries):
                    await api.apply(body)
                    if body["kind"] == "CustomResourceDefinition":
                        await wait_for(api, body["apiVersion"], body["kind"], _KIND, has_condition("Established"))
                await together(
                    certificate_is_mounted(api, NAMESPACE, _SECRET),
                    wait_available(cluster, api, NAMESPACE, [DEPLOYMENT]),
                )
                await webhooks_answer(api, _QUESTION)


def _image(binaries: Binaries) -> str:
    return f"{_REPOSITORY}:{version_of(binaries, 'training-operator')}"


async def _objects(cluster: Cluster, binaries: Binaries) -> list[Object]:
    """All that the manifests have for this kind; the image is the one that the cluster's nodes have."""
    written = await run(
        cluster.binaries.program("kubectl"), "kustomize", binaries.files("training-operator", "manifests") / _OVERLAY,
        what="the training operator's manifests cannot be put together", remedy="see what kustomize says of them",
    )  # fmt: skip
    bodies: list[Object] = list(filter(None, yaml.safe_load_all(written)))
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    (operator,) = deployment["spec"]["template"]["spec"]["containers"]
    operator |= {"image": _image(binaries), "imagePullPolicy": "Never", "args": ["--enable-scheme=pytorchjob"]}
    return [body for body in bodies if body["kind"] != "CustomResourceDefinition" or body["metadata"]["name"] == _KIND]
