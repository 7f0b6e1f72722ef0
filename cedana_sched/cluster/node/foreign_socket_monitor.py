"""Reports foreign sockets on the port of the node's `prestop-proxy` pod: the kernel assigns them some preStop calls.

A pod whose call such a socket answers is ended before it is saved. The owner of the socket must be root on the host
network; nothing can keep such a process out, so the agent makes it visible.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection
from pathlib import Path

import psutil
import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from cedana_sched.cluster.prestop_proxy.listening_socket_registry import TABLES, listening_inodes_at, registered_inodes
from cedana_sched.kube.events import ObjectEvent
from cedana_sched.kube.resources import NODES

log = structlog.get_logger(__name__)

LOOK_SECONDS = 15.0
"""Poll interval: no event shows that a socket listens."""
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_REMEDY = "end it: until then pods that are deleted on this node may lose their work; keep tenants from hostNetwork"


class HoldPortMetrics:
    """The metric of foreign sockets."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.strangers = Gauge(
            "cedana_sched_hold_port_foreign_sockets",
            "Sockets of others that listen at the port of the node's prestop-proxy pod.",
            registry=registry,
        )


def hold_port_event(node: str, text: str) -> ObjectEvent:
    """Return the Event about foreign sockets; the node's name stands for its uid, as in the kubelet's own Events."""
    return ObjectEvent(NODES.reference(node, uid=node), "HoldPortInUse", text, warning=True)


class ForeignSocketMonitor:
    """Monitors the port of one node.

    Args:
        port: of the node's `prestop-proxy` pod.
        ours: the folder in which the `prestop-proxy` pods record their sockets.
        on_problem: called with the problem, whenever it changes.
        owners: returns the names of the pods with a uid; blocks.
    """

    def __init__(
        self,
        port: int,
        ours: Path,
        on_problem: Callable[[str], None],
        owners: Callable[[str], Collection[str]],
        metrics: HoldPortMetrics | None = None,
        *,
        tables: tuple[Path, ...] = TABLES,
    ) -> None:
        self._port = port
        self._ours = ours
        self._on_problem = on_problem
        self._owners = owners
        self._metrics = metrics or HoldPortMetrics()
        self._tables = tables
        self._seen: set[int] = set()
        self._reported: set[int] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                await self.report_foreign_sockets()
            except OSError as error:  # for instance EMFILE: the dumps of this agent must continue
                log.warning("port of prestop-proxy not checked", port=self._port, error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def report_foreign_sockets(self) -> None:
        """Report sockets that the previous poll found as well.

        A `prestop-proxy` pod listens a moment before it records its socket.
        """
        now = await asyncio.to_thread(self._foreign_sockets)
        strangers, self._seen = now & self._seen, now
        self._metrics.strangers.set(len(strangers))
        if strangers - self._reported:
            who = await asyncio.to_thread(self._describe_socket_owners, strangers)
            text = f"{who} listens at port {self._port}, and takes preStop calls from the prestop-proxy pod: {_REMEDY}"
            log.error("preStop calls are taken by others", port=self._port, by=who)
            self._on_problem(text)
        self._reported = strangers

    def _foreign_sockets(self) -> set[int]:
        return listening_inodes_at(self._port, self._tables) - registered_inodes(self._ours)

    def _describe_socket_owners(self, inodes: set[int]) -> str:
        links = {f"socket:[{inode}]" for inode in inodes}
        processes = (Path("/proc", str(pid)) for pid in psutil.pids())
        found = {self._describe_process(process) for process in processes if _has_socket_open(process, links)}
        return ", ".join(sorted(found)) or "A process that is not to be found"

    def _describe_process(self, process: Path) -> str:
        with contextlib.suppress(OSError):  # the process has just exited
            if pod := _POD.search((process / "cgroup").read_text()):
                uid = pod[1].replace("_", "-")
                return f"Pod {', '.join(sorted(self._owners(uid))) or uid}"
        return f"Process {process.name}"


def _has_socket_open(process: Path, links: set[str]) -> bool:
    try:
        return any(_read_link_target(link) in links for link in (process / "fd").iterdir())
    except OSError:  # the process has just exited, or is not readable
        return False


def _read_link_target(link: Path) -> str:
    with contextlib.suppress(OSError):
        return str(link.readlink())
    return ""
