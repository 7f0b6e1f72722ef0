"""An S3 server in the cluster, and a bucket: where snapshots go, for pods and for agents on their nodes' network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.cluster.addons.deployments import wait_available
from tests.cluster.api.client import Api, Object
from tests.cluster.binaries.build import ensure
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import ensure_namespace
from tests.cluster.images.archive import BinaryImage, ensure_binary_image
from tests.cluster.steps import Steps

NAMESPACE = "s3"
NAME = "s3"
PORT = 7070
BUCKET = "snapshots"
ACCESS_KEY, SECRET_KEY = "tester", "a-secret-for-tests"
_IMAGE = "localhost/test/versitygw:dev"


@dataclass(frozen=True)
class S3Server:
    """Where it is, and its keys."""

    bucket: str = BUCKET
    endpoint: str = f"http://{NAME}.{NAMESPACE}.svc.cluster.local:{PORT}"
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY

    def secret(self, name: str, namespace: str) -> Object:
        """The keys as our chart wants them."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace},
            "stringData": {"accessKey": self.access_key, "secretKey": self.secret_key},
        }


@asynccontextmanager
async def running(cluster: Cluster, api: Api, steps: Steps) -> AsyncIterator[S3Server]:
    """A server with an empty bucket, gone at the end with all that was stored."""
    binaries = await ensure("versitygw", steps=steps)
    program = binaries.program("versitygw")
    image = BinaryImage(_IMAGE, {"/versitygw": program}, ["/versitygw"], user="0:0")
    await cluster.import_images([await ensure_binary_image(image)])
    await ensure_namespace(api, NAMESPACE)
    try:
        for body in objects():
            await api.apply(body, NAMESPACE)
        await wait_available(cluster, api, NAMESPACE, [NAME])
        yield S3Server()
    finally:
        await api.delete("v1", "Namespace", NAMESPACE)


def objects() -> list[Object]:
    """The server is a Deployment of one; the bucket is a folder of the volume that its objects lie in."""
    container = {
        "name": "versitygw",
        "image": _IMAGE,
        "imagePullPolicy": "Never",
        "args": ["--quiet", "--port", f":{PORT}", "posix", "/objects"],
        "env": [{"name": "ROOT_ACCESS_KEY", "value": ACCESS_KEY}, {"name": "ROOT_SECRET_KEY", "value": SECRET_KEY}],
        "ports": [{"name": "s3", "containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": "s3"}, "periodSeconds": 1},
        "volumeMounts": [{"name": "objects", "mountPath": f"/objects/{BUCKET}"}],
    }
    return served(NAME, PORT, container, [{"name": "objects", "emptyDir": {}}])


def served(name: str, port: int, container: Object, volumes: list[Object]) -> list[Object]:
    """A Deployment of one pod, and the Service before its port called `s3`."""
    labels = {"app": name}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": labels, "ports": [{"port": port, "targetPort": "s3"}]},
    }
    return [deployment, service]
