"""What is in the bucket of the tests' S3 server, as its own node sees it."""

from __future__ import annotations

from cedana_sched.model.identity import name_of_namespace
from cedana_sched.store import layout
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.e2e.product.s3_server import NAME, NAMESPACE


async def run_in_bucket(cluster: Cluster, api: Api, script: str) -> str:
    """Run a shell script in the folder whose files are the bucket's objects."""
    (pod,) = await api.objects("v1", "Pod", NAMESPACE, selector=f"app={NAME}")
    folder = f"/var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~empty-dir/objects"
    return await cluster.nodes[pod["spec"]["nodeName"]].run("sh", "-c", f"cd '{folder}' && {script}")


async def manifests(cluster: Cluster, api: Api, namespace: str) -> list[str]:
    """Keys of the manifests of all snapshots of a namespace: one for each snapshot that can be continued."""
    found = await run_in_bucket(cluster, api, "find . -ignore_readdir_race -type f -name '*.manifest'")
    keys = sorted(line.removeprefix("./") for line in found.splitlines())
    files = {key: file for key in keys if (file := layout.parse_generation_key(key)) is not None}
    return [key for key, file in files.items() if name_of_namespace(file.identity.namespace) == namespace]
