"""A pod exchanges folders of its volume for links to files of its node, again and again, while root saves or lays them.

Its containers stand still while the agent saves the volume, and have not begun when it lays it. But a debug container,
which whoever may debug the pod can add at any time, runs meanwhile: here it is added once the agent waits for the store.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cedana_sched.model.objects.names import API_VERSION, RESTORE_CONTAINER
from cedana_sched.model.records import CheckpointStep, RestoreStep
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.nodes.node import Node
from tests.cluster.patience import patient
from tests.e2e.product import s3_server
from tests.e2e.product.counting import begun, counting
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import AGENT, Product
from tests.e2e.product.pausing import paused
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.rendering import NAMESPACE

pytestmark = pytest.mark.any_shape

_HOST = "/var/lib/not-for-pods"
_LINK = f"/proc/1/root{_HOST}"
"""Where an agent would find it: it shares the PID namespace of its node."""
_FILES = 20
"""In each folder; on the node they have the same names."""
_VOLUME = {"name": "data", "mountPath": "/data"}
_CAPTURES = "/var/lib/cedana-sched/captures"

_EXCHANGE = f"""
import ctypes, os, sys, time
libc, HERE, EXCHANGE = ctypes.CDLL(None), -100, 2
folders = [f"/data/d{{number:02}}" for number in range(12)]
if sys.argv[1] == "fill":
    for folder in folders:
        os.mkdir(folder)
        for number in range({_FILES}):
            with open(f"{{folder}}/f{{number:02}}", "w") as file:
                file.write("own " * 256)
while True:
    for folder in folders:
        link = folder + "-link"
        try:
            os.symlink("{_LINK}", link)
        except FileExistsError:
            pass
        if libc.renameat2(HERE, folder.encode(), HERE, link.encode(), EXCHANGE):
            try:
                os.rename(link, folder)
            except OSError:
                pass
    time.sleep(float(sys.argv[2]))
"""

_KEPT = """
import pathlib, sys
from cedana_sched.cluster.configuration import AgentConfiguration
from cedana_sched.model.identity import name_of_namespace
from cedana_sched.store.snapshots import SnapshotStore
namespace, secret = sys.argv[1], sys.stdin.read().strip().encode()
configuration = pathlib.Path("/etc/cedana-sched/agent.json").read_text()
store = SnapshotStore.open(AgentConfiguration.model_validate_json(configuration).storage)
for ref in store.committed():
    if name_of_namespace(ref.identity.namespace) == namespace:
        archive = store.open_snapshot(ref).read("volumes/data.tar")
        print(ref, "own " in archive.decode("latin-1"), secret in archive)
"""
"""What an agent finds in the archives of a namespace's snapshots: our own files, and the word that it is given."""


def _exchanging(name: str, image: str, what: str, pause: float, **fields: object) -> Object:
    command = ["python3", "-c", _EXCHANGE, what, str(pause)]
    return {
        "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": command, "volumeMounts": [_VOLUME],
        **fields,
    }  # fmt: skip


def _job(image: str, second: str = "second") -> Object:
    """One that counts, and beside that exchanges folders of a volume."""
    body = indexed_job("md", "bio", image, *counting(counts=None), cpu="500m", volumes=[{"name": "data", "emptyDir": {}}])
    spec = body["spec"]["template"]["spec"]
    spec["containers"][0]["volumeMounts"] = [_VOLUME]
    spec["containers"].append(_exchanging(second, image, "fill", 0.001, resources={"requests": {"cpu": "100m"}}))
    return body


class _HostFiles:
    """Files of root's on each node, with a word that nobody else knows."""

    def __init__(self, nodes: list[Node]) -> None:
        self.secret = secrets.token_hex(32)
        self._nodes = nodes

    @classmethod
    @asynccontextmanager
    async def on(cls, cluster: Cluster) -> AsyncIterator[_HostFiles]:
        files = cls(list(cluster.nodes.values()))
        write = f"for n in $(seq -w 0 {_FILES - 1}); do yes {files.secret} | head -c 1024 > f$n; done"
        for node in files._nodes:
            await node.run("sh", "-c", f"mkdir -m 700 {_HOST} && cd {_HOST} && {write}")
        try:
            yield files
        finally:
            for node in files._nodes:
                await node.run("rm", "-rf", _HOST)

    async def seen(self) -> list[str]:
        """All about them."""
        look = f"find {_HOST} -printf '%P %y %m %u %T@ %C@\\n' | sort; cat {_HOST}/* | sha256sum"
        return [await node.run("sh", "-c", look) for node in self._nodes]

    async def is_in_volume(self, node: Node, pod: Object) -> bool:
        """Whether the word is in a file of the pod's volume."""
        volume = f"/var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~empty-dir/data"
        look = f"test -d {volume} && grep -rqsF {self.secret} {volume}; echo $?"  # links are not followed
        return (await node.run("sh", "-c", look)).strip() == "0"


async def _kept(cluster: Cluster, api: Api, namespace: Namespace, secret: str) -> list[list[str]]:
    """Of each snapshot of the namespace which it is, and what its volume has; see `_KEPT`."""
    said = await Namespace(cluster, api, NAMESPACE).kubectl(
        "exec", "--stdin", f"daemonset/{AGENT}", "--", "python3", "-c", _KEPT, namespace.name,
        stdin=f"{secret}\n".encode(),
    )  # fmt: skip
    return [line.split() for line in said.splitlines()]


async def _debugged(namespace: Namespace, pod: str, image: str) -> None:
    """Add a debug container that does nothing but exchange; returns when it runs."""
    await _add(namespace, pod, _exchanging("debug", image, "exchange", 0))

    def runs(body: Object) -> bool:
        return any("running" in one["state"] for one in body["status"].get("ephemeralContainerStatuses", []))

    await namespace.wait("v1", "Pod", pod, runs)


async def _add(namespace: Namespace, pod: str, container: Object) -> None:
    patch = json.dumps({"spec": {"ephemeralContainers": [container]}})
    await namespace.kubectl("patch", f"pod/{pod}", "--subresource=ephemeralcontainers", f"--patch={patch}")


async def _refused(namespace: Namespace, body: Object) -> str:
    with pytest.raises(ClusterError) as caught:
        await namespace.kubectl("create", "--filename=-", stdin=json.dumps(body).encode())
    return str(caught.value)


async def _next(namespace: Namespace, kind: str, *steps: str, after: set[str]) -> Object:
    """The one that is not among those before, once it is at one of these steps."""

    def new(found: list[Object]) -> list[Object]:
        fresh = [one for one in found if one["metadata"]["uid"] not in after]
        return [one for one in fresh if one.get("status", {}).get("step") in steps]

    found = await wait_for_all(
        namespace.api, API_VERSION, kind, lambda found: bool(new(found)), namespace=namespace.name, within=120
    )
    return new(found)[0]


async def _uids(namespace: Namespace, kind: str) -> set[str]:
    return {one["metadata"]["uid"] for one in await namespace.api.objects(API_VERSION, kind, namespace.name)}


async def test_nothing_of_the_node_gets_into_a_snapshot_and_nothing_of_a_snapshot_onto_the_node(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api
) -> None:
    (s3,) = await api.objects("v1", "Pod", s3_server.NAMESPACE, selector=f"app={s3_server.NAME}")
    train = indexed_job("train", "ml", toolbox, "sleep", "3600", pods=2)
    async with groups(namespace), Following.of(namespace, "md") as bio, _HostFiles.on(cluster) as host:
        before = await host.seen()
        pod = _job(toolbox, RESTORE_CONTAINER)["spec"]["template"]
        pod |= {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ours"}}
        assert "call yours otherwise" in await _refused(namespace, pod)
        await namespace.apply(_job(toolbox))
        await begun(bio, 0)

        # saved while a container that is not frozen exchanges: refused, or with nothing that is not the pod's
        async with paused(cluster, s3):
            await namespace.apply(train)
            checkpoint = await _next(namespace, "Checkpoint", CheckpointStep.DUMPING, after=set())
            node = cluster.nodes[bio.nodes[0][0]]
            lock = f"{_CAPTURES}/{checkpoint['spec']['uid']}/lock"
            until = f"until test -e {lock}; do sleep 0.05; done"  # by then the agent has seen which containers there are
            await asyncio.wait_for(node.run("sh", "-c", until), patient(30))
            await _debugged(namespace, bio.pods[0][0], toolbox)
        settled = await _next(namespace, "Checkpoint", CheckpointStep.READY, CheckpointStep.FAILED, after=set())
        print(settled["status"])
        kept = await _kept(cluster, api, namespace, host.secret)
        print(kept)
        assert not any(secret == "True" for _, _, secret in kept), "the node's file is in the snapshot"
        if settled["status"]["step"] == CheckpointStep.FAILED:
            assert "was removed or exchanged while it was saved" in settled["status"]["message"]

        # saved with both containers frozen
        await namespace.delete("batch/v1", "Job", "train")
        await begun(bio, 0, counts=len(bio.lines(0)) + 20)
        earlier = await _uids(namespace, "Checkpoint")
        await namespace.apply(train)
        await _next(namespace, "Checkpoint", CheckpointStep.READY, after=earlier)
        kept = await _kept(cluster, api, namespace, host.secret)
        print(kept)
        assert kept
        assert all((own, secret) == ("True", "False") for _, own, secret in kept[-1:])

        # laid while one exchanges
        returns, lines, pods = await _uids(namespace, "Restore"), len(bio.lines(0)), set(bio.pods[0])
        async with paused(cluster, s3):
            await namespace.delete("batch/v1", "Job", "train")
            await _next(namespace, "Restore", RestoreStep.WAITING, after=returns)
            (back,) = [one for one in await namespace.api.objects("v1", "Pod", namespace.name)
                if one["metadata"]["labels"].get("job-name") == "md" and one["metadata"]["name"] not in pods]
            await _debugged(namespace, back["metadata"]["name"], toolbox)
        restore = await _next(namespace, "Restore", RestoreStep.RUNNING, after=returns)
        print(restore["status"])
        await begun(bio, 0, counts=lines + 20)
        assert await host.seen() == before, "something was laid into a folder of the node"
        assert not await host.is_in_volume(cluster.nodes[bio.nodes[0][-1]], back)
        if restore["status"].get("cold"):
            said = await wait_for_messages(namespace, back["metadata"]["name"], "ColdStart", kind="Warning")
            print(said)
            assert "volume data cannot be filled" in "".join(said)
