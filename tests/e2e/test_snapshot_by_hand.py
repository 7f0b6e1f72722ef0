"""The nodes can do what the product needs: dump a container on one, continue it on the other through a handler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, pod

_HANDLER = "restore-by-hand"
_PROGRAM = Path(__file__).parent / "handlers" / "restore_by_hand.py"
_SNAPSHOT = "/var/lib/snapshots/counter"
_COUNT = "import itertools, time\nfor n in itertools.count(): print(n, flush=True); time.sleep(0.05)"


@pytest_asyncio.fixture(loop_scope="session")
async def handler(cluster: Cluster, api: Api) -> AsyncIterator[str]:
    """A RuntimeClass whose handler restores."""
    target = f"/usr/local/bin/{_HANDLER}"
    for node in cluster.nodes.values():
        await node.run("tee", target, stdin=_PROGRAM.read_bytes())
        await node.run("chmod", "755", target)
        await node.add_runtime_handler(_HANDLER, target)
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": _HANDLER}}
    await api.apply({**runtime_class, "handler": _HANDLER})
    yield _HANDLER
    await api.delete("node.k8s.io/v1", "RuntimeClass", _HANDLER)


@pytest.mark.nodes(2)
async def test_container_dumped_on_one_node_continues_on_the_other(
    namespace: Namespace, toolbox: str, handler: str
) -> None:
    here, there = list(namespace.cluster.nodes.values())[:2]
    counter = container(toolbox, "python3", "-c", _COUNT)
    await namespace.apply(pod("counter", counter, nodeName=here.name))
    running = await namespace.ready("counter")
    container_id = running["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")

    await here.run("mkdir", "-p", _SNAPSHOT)
    options = ("--image-path", _SNAPSHOT, "--work-path", _SNAPSHOT, "--file-locks")
    await here.run("runc", "--root", "/run/containerd/runc/k8s.io", "checkpoint", *options, container_id)
    counted = [int(line) for line in (await namespace.logs("counter")).split()]
    await there.run("mkdir", "-p", _SNAPSHOT)
    await there.copy_from(here, _SNAPSHOT)

    continuing = container(toolbox, "python3", "-c", _COUNT, env=[{"name": "RESTORE_FROM", "value": _SNAPSHOT}])
    await namespace.apply(pod("continued", continuing, nodeName=there.name, runtimeClassName=handler))
    await namespace.ready("continued")
    first = int((await namespace.logs("continued", "--limit-bytes=20")).split()[0])

    assert counted == list(range(len(counted)))
    assert first == len(counted), "it went on with the number after the last one that it had said"
