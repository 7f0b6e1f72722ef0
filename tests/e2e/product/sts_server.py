"""An S3 server in the cluster that gives credentials of sessions, and enforces their policies: SeaweedFS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import minio.error
import tenacity
import urllib3

from cedana_sched.store.credential_renewal import SessionCredentials
from tests.cluster.addons.deployments import wait_available
from tests.cluster.api.client import Api, Object
from tests.cluster.binaries.build import ensure
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, ensure_namespace
from tests.cluster.images.archive import BinaryImage, ensure_binary_image
from tests.cluster.steps import Steps
from tests.e2e.product.s3_server import S3Server, served
from tests.servers.seaweedfs import ACCESS_KEY, QUIET, ROLE, SECRET_KEY, iam
from tests.servers.thief import client_with

NAMESPACE = "sts"
NAME = "sts"
KEYS = "sts-keys"
"""The Secret of the release's namespace with the bucket's keys."""
PREFIX = "lab"
"""What all that is saved begins with in the bucket."""
_BUCKET = "scoped"
_PORT = 8333
_IMAGE = "localhost/test/seaweedfs:dev"
OWNER = SessionCredentials(ACCESS_KEY, SECRET_KEY, "", 1.0)


@asynccontextmanager
async def running(cluster: Cluster, api: Api, steps: Steps) -> AsyncIterator[S3Server]:
    """A server with an empty bucket, gone at the end with all that was stored."""
    binaries = await ensure("seaweedfs", steps=steps)
    image = BinaryImage(_IMAGE, {"/weed": binaries.program("weed")}, ["/weed"], user="0:0")
    await cluster.import_images([await ensure_binary_image(image)])
    await ensure_namespace(api, NAMESPACE)
    try:
        for body in _objects():
            await api.apply(body, NAMESPACE)
        await wait_available(cluster, api, NAMESPACE, [NAME])
        async with reached(cluster, api) as endpoint:
            await asyncio.to_thread(_make_bucket, endpoint)
        yield S3Server(_BUCKET, f"http://{NAME}.{NAMESPACE}.svc.cluster.local:{_PORT}", ACCESS_KEY, SECRET_KEY)
    finally:
        await api.delete("v1", "Namespace", NAMESPACE)


@asynccontextmanager
async def reached(cluster: Cluster, api: Api) -> AsyncIterator[str]:
    """Where this machine reaches it, as `http://host:port`."""
    async with Namespace(cluster, api, NAMESPACE).forwarded(f"service/{NAME}", _PORT) as port:
        yield f"http://127.0.0.1:{port}"


def scoped(server: S3Server) -> Mapping[str, Any]:
    """The chart's `storage.s3` by which agents get credentials of namespaces from it."""
    credentials = {"enabled": True, "roleArn": ROLE}
    return {
        "bucket": server.bucket,
        "prefix": PREFIX,
        "endpoint": server.endpoint,
        "existingSecret": KEYS,
        "scopedCredentials": credentials,
    }


@tenacity.retry(
    wait=tenacity.wait_fixed(0.5),
    stop=tenacity.stop_after_delay(60),
    retry=tenacity.retry_if_exception_type((OSError, urllib3.exceptions.HTTPError, minio.error.MinioException)),
    reraise=True,
)
def _make_bucket(endpoint: str) -> None:
    """Its S3 answers a while before the parts behind it do."""
    owner = client_with(OWNER, endpoint)
    if not owner.bucket_exists(_BUCKET):
        owner.make_bucket(_BUCKET)


def _objects() -> list[Object]:
    """All its parts are one process, which tells the others nothing but its loopback address."""
    configuration = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME},
        "data": {"iam.json": json.dumps(iam())},
    }
    container = {
        "name": "seaweedfs",
        "image": _IMAGE,
        "imagePullPolicy": "Never",
        "args": [
            "mini",
            "-ip=127.0.0.1",
            "-ip.bind=0.0.0.0",
            "-dir=/data",
            f"-s3.port={_PORT}",
            "-s3.config=/iam/iam.json",
            "-s3.iam.config=/iam/iam.json",
            "-s3.localSocket=/data/s3.sock",
            "-filer.localSocket=/data/filer.sock",
            *QUIET,
        ],
        "env": [{"name": "HOME", "value": "/data"}],
        "workingDir": "/data",
        "ports": [{"name": "s3", "containerPort": _PORT}],
        "readinessProbe": {"tcpSocket": {"port": "s3"}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "iam", "mountPath": "/iam"}],
    }
    volumes = [{"name": "data", "emptyDir": {}}, {"name": "iam", "configMap": {"name": NAME}}]
    return [configuration, *served(NAME, _PORT, container, volumes)]
