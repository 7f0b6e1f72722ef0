"""Preflight checks that a workload can be dumped and restored, so that it is not frozen in vain.

The checks must not delay the freeze: they have a few seconds, and threads of their own. Inspecting a workload may take
long, or for ever. An unfinished check counts as passed: the dump decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.agent.workload_runtime import RunningWorkload, WorkloadRuntime
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.preflight import LOOK_SECONDS, CutShortError, Obstacle, find_obstacles
from cedana_sched.snapshot.tcp_table import remote_addresses

log = structlog.get_logger(__name__)

LOOKS_AT_ONCE = 8
GRACE_SECONDS = 1.0
"""Grace for a check to end by its own timeout."""

FindPeer = Callable[[WorkloadRef, Collection[str]], Awaitable[str | None]]
"""Returns the name of another workload of the same owner at one of these addresses; None if there is none. Raises
CedanaSchedError if that cannot be determined now."""


class Preflight:
    """Checks workloads before they are frozen; `find_peer` is None if workloads have no addresses of their own."""

    def __init__(
        self, runtime: WorkloadRuntime, find_peer: FindPeer | None = None, seconds: float = LOOK_SECONDS
    ) -> None:
        self._runtime = runtime
        self._find_peer = find_peer
        self._seconds = seconds
        self._threads = StoreThreads(LOOKS_AT_ONCE, name="look")

    async def find_freeze_obstacle(self, workload: WorkloadRef) -> str | None:
        """Return why a freeze would be in vain; None if no obstacle was found within the time limit."""
        running = await self._runtime.find_running(workload)
        if running is None:
            return None
        try:
            async with asyncio.timeout(self._seconds + GRACE_SECONDS):
                return await self._find_obstacle(workload, running)
        except (CutShortError, TimeoutError) as error:
            why = str(error) or "the look does not end"
            log.warning("not looked at all of a workload before its freeze", workload=workload.name, reason=why)
            return None

    async def _find_obstacle(self, workload: WorkloadRef, running: RunningWorkload) -> str | None:
        found = await self._threads.run(_find_process_obstacles, running, self._seconds)
        return str(found[0]) if found else await self._find_peer_connection(workload, running)

    async def _find_peer_connection(self, workload: WorkloadRef, running: RunningWorkload) -> str | None:
        """Return an obstacle if the workload is connected to another one of its owner.

        A restore cuts that connection, which breaks their program.
        """
        if self._find_peer is None:
            return None
        roots = [container.root_pid for container in running.containers]
        addresses = await self._threads.run(remote_addresses, roots)
        peer = await self._find_peer(workload, addresses) if addresses else None
        if peer is None:
            return None
        return (
            f"it is connected to {peer}, and connections between pods of one job cannot be continued:"
            " run all processes that talk to each other in one pod"
        )


def _find_process_obstacles(running: RunningWorkload, seconds: float) -> list[Obstacle]:
    return find_obstacles(
        (pid for cgroup in running.freezer_cgroups for pid in freezer.pids_in_cgroup(cgroup)), seconds
    )
