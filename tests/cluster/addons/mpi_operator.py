"""Kubeflow's MPI operator, from its own unmodified manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from tests.cluster.addons.addon import version_of
from tests.cluster.addons.deployments import wait_available
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition, wait_for
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.images.archive import BinaryImage
from tests.cluster.steps import Steps

NAMESPACE: Final = "mpi-operator"
DEPLOYMENT: Final = "mpi-operator"
_MANIFEST: Final = "deploy/v2beta1/mpi-operator.yaml"
_REPOSITORY: Final = "docker.io/mpioperator/mpi-operator"


@dataclass(frozen=True)
class MpiOperator:
    """The operator with one replica."""

    name: str = "mpi-operator"
    tools: tuple[str, ...] = ("mpi-operator",)

    def images(self, binaries: Binaries) -> Sequence[BinaryImage]:
        program = {"/opt/mpi-operator": binaries.program("mpi-operator")}
        return [BinaryImage(_image(binaries), program, ["/opt/mpi-operator"])]

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        with steps.step("MPI operator Available"):
            async with cluster.api() as api:
                for body in _objects(binaries):
                    written = await api.apply(body)
                    if body["kind"] == "CustomResourceDefinition":
                        name = written["metadata"]["name"]
                        await wait_for(api, body["apiVersion"], body["kind"], name, has_condition("Established"))
                await wait_available(cluster, api, NAMESPACE, [DEPLOYMENT])


def _image(binaries: Binaries) -> str:
    return f"{_REPOSITORY}:{version_of(binaries, 'mpi-operator').removeprefix('v')}"


def _objects(binaries: Binaries) -> list[Object]:
    """All that the manifest has; the image is the one that its nodes have."""
    bodies: list[Object] = list(filter(None, yaml.safe_load_all(binaries.files("mpi-operator", _MANIFEST).read_text())))
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    (operator,) = deployment["spec"]["template"]["spec"]["containers"]
    operator |= {"image": _image(binaries), "imagePullPolicy": "Never"}
    return bodies
