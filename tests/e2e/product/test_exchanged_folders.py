"""A pod exchanges folders of its volume for links to files of its node, again and again, while root saves or lays them.

Its containers stand still while the agent saves the volume, and have not begun when it lays it. But a debug container,
which whoever may debug the pod can add at any time, runs meanwhile: here it comes while the agent waits for the store.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from cedana_sched.model.objects.names import API_VERSION, RESTORE_CONTAINER
from cedana_sched.model.records import CheckpointStep, RestoreStep
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.nodes.node import Node
from tests.cluster.patience import patient
from tests.e2e.product import s3_server
from tests.e2e.product.counting import BEGUN, begun, counting
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
from cedana_sched.store.snapshot_store import SnapshotStore
namespace, secret = sys.argv[1], sys.stdin.read().strip().encode()
configuration = pathlib.Path("/etc/cedana-sched/agent.json").read_text()
store = SnapshotStore.open(AgentConfiguration.model_validate_json(configuration).storage)
for ref in store.committed_snapshots():
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
    body = indexed_job(
        "md", "bio", image, *counting(counts=None), cpu="500m", volumes=[{"name": "data", "emptyDir": {}}]
    )
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
            await node.run("sh", "-c", f"mkdir -p -m 700 {_HOST} && cd {_HOST} && {write}")
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


class _Attack:
    """What befalls the Job while it is saved, and while it returns."""

    def __init__(self, namespace: Namespace, image: str, cluster: Cluster, bio: Following, host: _HostFiles) -> None:
        self.namespace = namespace
        self.bio = bio
        self.host = host
        self._image = image
        self._cluster = cluster

    async def preempt(self) -> None:
        """Have ml take back all that is its own."""
        await self.namespace.apply(indexed_job("train", "ml", self._image, "sleep", "3600", pods=2))

    @asynccontextmanager
    async def waiting_for_the_store(self) -> AsyncIterator[None]:
        """Inside the block whoever needs the store waits."""
        (pod,) = await self.namespace.api.objects("v1", "Pod", s3_server.NAMESPACE, selector=f"app={s3_server.NAME}")
        async with paused(self._cluster, pod):
            yield

    async def is_dumping(self, checkpoint: Object) -> None:
        """Wait until the agent has seen which containers there are, and has begun."""
        node = self._cluster.nodes[checkpoint["spec"]["podRef"]["nodeName"]]
        until = f"until test -e {_CAPTURES}/{checkpoint['spec']['uid']}/lock; do sleep 0.05; done"
        await asyncio.wait_for(node.run("sh", "-c", until), patient(30))

    async def kept(self) -> list[list[str]]:
        """Of each snapshot of the namespace which it is, and what its volume has; see `_KEPT`."""
        said = await Namespace(self._cluster, self.namespace.api, NAMESPACE).kubectl(
            "exec", "--stdin", f"daemonset/{AGENT}", "--", "python3", "-c", _KEPT, self.namespace.name,
            stdin=f"{self.host.secret}\n".encode(),
        )  # fmt: skip
        return [line.split() for line in said.splitlines()]

    async def debug(self, pod: str) -> None:
        """Add a debug container that does nothing but exchange; returns when it runs."""
        patch = json.dumps({"spec": {"ephemeralContainers": [_exchanging("debug", self._image, "exchange", 0)]}})
        await self.namespace.kubectl("patch", f"pod/{pod}", "--subresource=ephemeralcontainers", f"--patch={patch}")
        await self.namespace.wait("v1", "Pod", pod, _is_debugged)


def _is_debugged(pod: Object) -> bool:
    return any("running" in one["state"] for one in pod["status"].get("ephemeralContainerStatuses", []))


async def _next(namespace: Namespace, kind: str, *steps: str, after: Collection[str] = ()) -> Object:
    """The one that is not among those before, by their uids, once it is at one of these steps."""

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
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio, _HostFiles.on(cluster) as host:
        before = await host.seen()
        attack = _Attack(namespace, toolbox, cluster, bio, host)
        await _not_admitted_under_our_name(namespace, toolbox)
        await namespace.apply(_job(toolbox))
        await begun(bio, 0)
        await _dumped(attack)

        await namespace.delete("batch/v1", "Job", "train")
        await begun(bio, 0, counts=len(bio.lines(0)) + BEGUN)
        earlier = await _uids(namespace, "Checkpoint")
        await attack.preempt()
        await _next(namespace, "Checkpoint", CheckpointStep.READY, after=earlier)
        assert (await attack.kept())[-1][1:] == ["True", "False"], "it has all that is the pod's, and no more"

        back = await _laid(attack)
        assert await host.seen() == before, "something was laid into a folder of the node"
        assert not await host.is_in_volume(cluster.nodes[back["spec"]["nodeName"]], back)


async def _not_admitted_under_our_name(namespace: Namespace, image: str) -> None:
    body = {**_job(image, RESTORE_CONTAINER)["spec"]["template"], "apiVersion": "v1", "kind": "Pod"}
    body["metadata"] = {"name": "ours"}
    with pytest.raises(ClusterError, match="call yours otherwise"):
        await namespace.kubectl("create", "--filename=-", stdin=json.dumps(body).encode())


async def _dumped(attack: _Attack) -> None:
    """A container that is not frozen exchanges: it is refused with a reason, or has nothing that is not the pod's."""
    async with attack.waiting_for_the_store():
        await attack.preempt()
        await attack.is_dumping(await _next(attack.namespace, "Checkpoint", CheckpointStep.DUMPING))
        await attack.debug(attack.bio.pods[0][0])
    over = await _next(attack.namespace, "Checkpoint", CheckpointStep.READY, CheckpointStep.FAILED)
    assert not any("True" in foreign for _, _, *foreign in await attack.kept()), "the node's files are in the snapshot"
    if over["status"]["step"] == CheckpointStep.FAILED:
        assert "was removed or exchanged while it was saved" in over["status"]["message"]


async def _laid(attack: _Attack) -> Object:
    """A container exchanges before the others begin: the pod continues, or begins anew with a reason; that pod."""
    namespace, bio = attack.namespace, attack.bio
    earlier, lines = await _uids(namespace, "Restore"), len(bio.lines(0))
    async with attack.waiting_for_the_store():
        await namespace.delete("batch/v1", "Job", "train")
        returning = await _next(namespace, "Restore", RestoreStep.WAITING, after=earlier)
        back = returning["spec"]["podRef"]["name"]
        await attack.debug(back)
    restore = await _next(namespace, "Restore", RestoreStep.RUNNING, after=earlier)
    await begun(bio, 0, counts=lines + BEGUN)
    assert bio.pods[0][-1] == back
    if restore["status"].get("cold"):
        said = await wait_for_messages(namespace, back, "ColdStart", kind="Warning")
        assert "volume data cannot be filled" in "".join(said)
    return await namespace.get("v1", "Pod", back)
