"""A stand-in of systemd-logind on a node, and a kubelet that takes a shutdown from it."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import tenacity

from tests.cluster.api.client import Api, Object
from tests.cluster.nodes.configuration import KUBERNETES
from tests.cluster.nodes.node import Node
from tests.cluster.patience import patient
from tests.servers import logind

PROGRAM: Final = "/run/logind.py"
OUTPUT: Final = "/run/logind.log"
KUBELET: Final = f"{KUBERNETES}/kubelet.yaml"
_ENDED_BY_SHUTDOWN: Final = frozenset({"Terminated", "NodeShutdown"})


class Logind:
    """Of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def begin_shutdown(self) -> None:
        await self._send("USR1")

    async def cancel_shutdown(self) -> None:
        """The machine does not end after all: the kubelet admits pods again, and holds another lock."""
        locks = (await self._said()).count("inhibited")
        await self._send("USR2")
        await self.wait_said("inhibited", locks + 1)

    async def wait_said(self, word: str, times: int = 1) -> None:
        """Wait until the stand-in has printed this word so many times."""
        await tenacity.AsyncRetrying(
            wait=tenacity.wait_fixed(0.2),
            stop=tenacity.stop_after_delay(patient(90)),
            retry=tenacity.retry_if_result(lambda printed: printed.count(word) < times),
        )(self._said)

    async def _said(self) -> str:
        return await self._node.run("cat", OUTPUT)

    async def _send(self, signal: str) -> None:
        await self._node.run("sh", "-c", f"kill -{signal} $(cat {PROGRAM}.pid)")


@asynccontextmanager
async def graceful_shutdown_enabled(node: Node, **configuration: Any) -> AsyncIterator[Logind]:
    """The kubelet holds logind's lock inside the block, and has these fields in its configuration."""
    before = await node.run("cat", KUBELET)
    await node.run("tee", PROGRAM, stdin=inspect.getsource(logind).encode())
    await node.run("sh", "-c", f"setsid python3 {PROGRAM} >{OUTPUT} 2>&1 </dev/null & echo $! >{PROGRAM}.pid")
    try:
        await _configure(node, json.dumps({**json.loads(before), **configuration}))
        running = Logind(node)
        await running.wait_said("inhibited")
        yield running
    finally:
        await _configure(node, before)
        await node.run("sh", "-c", f"kill $(cat {PROGRAM}.pid)")


async def _configure(node: Node, text: str) -> None:
    await node.run("tee", KUBELET, stdin=text.encode())
    await node.restart("kubelet")


async def remove_ended_pods(api: Api, node: Node) -> None:
    """Remove what the shutdown has left: pods that it has ended, and those that were refused while it went on."""
    for pod in await api.objects("v1", "Pod"):
        if pod["spec"].get("nodeName") == node.name and _is_ended_by_shutdown(pod):
            await api.delete("v1", "Pod", pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)


def _is_ended_by_shutdown(pod: Object) -> bool:
    status = pod["status"]
    if status.get("phase") == "Succeeded":  # its programs ended without an error when the kubelet ended them
        return any(owner["kind"] == "ReplicaSet" for owner in pod["metadata"].get("ownerReferences", ()))
    return status.get("phase") == "Failed" and status.get("reason") in _ENDED_BY_SHUTDOWN
