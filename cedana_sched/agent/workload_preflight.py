"""Preflight checks that a workload can be dumped and restored: before a freeze, and soon after the workload's start.

Before a freeze they keep a workload from being frozen in vain, and must not delay it: they have a few seconds, and
threads of their own. Inspecting a workload may take long, or for ever. An unfinished check counts as passed: the dump
decides. Inspections of running workloads have other threads: whatever tenants make them wait for, no freeze waits with
them. How many of either may not return is limited (`limited_inspections`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec
import structlog

from cedana_sched.agent.limited_inspections import IN_ALL, LimitedInspections, TooManyInspectionsError
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.agent.workload_runtime import RunningWorkload, WorkloadRuntime
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.texts import printable_text, truncate_text
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.preflight import LOOK_SECONDS, CutShortError, Obstacle, find_obstacles
from cedana_sched.snapshot.tcp_table import remote_addresses

log = structlog.get_logger(__name__)

GRACE_SECONDS = 1.0
"""Grace for a check to end by its own timeout."""
LONGEST_MESSAGE: Final = 512
"""Characters of an obstacle's message in an `Inspection`; programs choose their names."""

FindPeer = Callable[[WorkloadRef, Collection[str]], Awaitable[str | None]]
"""Returns the name of another workload of the same owner at one of these addresses; None if there is none. Raises
CedanaSchedError if that cannot be determined now."""


class FoundObstacle(msgspec.Struct, frozen=True):
    """One reason why a checkpoint would fail, for people."""

    reason: str
    """In CamelCase."""
    message: str
    """The sentence and its remedy: printable, `LONGEST_MESSAGE` characters at most."""


class Inspection(msgspec.Struct, frozen=True):
    """What one look at a running workload has found."""

    obstacle: FoundObstacle | None = None
    unfinished: str | None = None
    """Why nothing is known: the look found nothing and did not end. None: it ended."""
    is_postponed: bool = False
    """Whether the look has not begun, because earlier ones have not returned."""


class Preflight:
    """Checks workloads; `find_peer` is None if workloads have no addresses of their own."""

    def __init__(
        self, runtime: WorkloadRuntime, find_peer: FindPeer | None = None, seconds: float = LOOK_SECONDS
    ) -> None:
        self._runtime = runtime
        self._find_peer = find_peer
        self._seconds = seconds
        self._freeze_looks = LimitedInspections("look before a freeze")
        self._freeze_threads = StoreThreads(IN_ALL, name="look")
        self._inspections = LimitedInspections("inspection")
        self._inspection_threads = StoreThreads(IN_ALL, name="inspection")

    async def find_freeze_obstacle(self, workload: WorkloadRef) -> str | None:
        """Return why a freeze would be in vain; None if no obstacle was found within the time limit."""

        async def look() -> str | None:
            running = await self._runtime.find_running(workload)
            if running is None:
                return None
            found = await self._freeze_threads.run(_find_process_obstacles, running, self._seconds)
            if found:
                return str(found[0])
            peer = await self._find_peer_connection(workload, running, self._freeze_threads)
            return _peer_message(peer) if peer is not None else None

        try:
            async with asyncio.timeout(self._seconds + GRACE_SECONDS):
                return await self._freeze_looks.run_in_turn(workload, look)
        except (CutShortError, TimeoutError) as error:
            why = str(error) or "the look does not end"
            log.warning("not looked at all of a workload before its freeze", workload=workload.name, reason=why)
            return None

    async def inspect(self, workload: WorkloadRef, *, peers: bool) -> Inspection | None:
        """Look at a running workload without freezing it; None if it does not run.

        `peers`: whether to look for connections to other workloads of its owner, which costs a request for each.

        Raises:
            CedanaSchedError: a transient failure.
        """

        async def look() -> Inspection | None:
            running = await self._runtime.find_running(workload)
            if running is None:
                return None
            found = await self._inspection_threads.run(_find_process_obstacles, running, self._seconds)
            if found:
                return Inspection(_found_obstacle(found[0].reason, str(found[0])))
            peer = await self._find_peer_connection(workload, running, self._inspection_threads) if peers else None
            return Inspection(_found_obstacle("ConnectedToPeer", _peer_message(peer)) if peer is not None else None)

        try:
            async with asyncio.timeout(self._seconds + GRACE_SECONDS):
                return await self._inspections.run(workload, look)
        except TooManyInspectionsError as error:
            return Inspection(unfinished=str(error), is_postponed=True)
        except (CutShortError, TimeoutError) as error:
            return Inspection(unfinished=str(error) or "the look does not end")

    async def _find_peer_connection(
        self, workload: WorkloadRef, running: RunningWorkload, threads: StoreThreads
    ) -> str | None:
        """Return another workload of the same owner to which this one is connected.

        A restore cuts that connection, which breaks their program.
        """
        if self._find_peer is None:
            return None
        roots = [container.root_pid for container in running.containers]
        addresses = await threads.run(remote_addresses, roots)
        return await self._find_peer(workload, addresses) if addresses else None


def _peer_message(peer: str) -> str:
    return (
        f"it is connected to {peer}, and connections between pods of one job cannot be continued:"
        " run all processes that talk to each other in one pod"
    )


def _found_obstacle(reason: str, message: str) -> FoundObstacle:
    return FoundObstacle(reason, truncate_text(printable_text(message), LONGEST_MESSAGE))


def _find_process_obstacles(running: RunningWorkload, seconds: float) -> list[Obstacle]:
    return find_obstacles(
        (pid for cgroup in running.freezer_cgroups for pid in freezer.pids_in_cgroup(cgroup)), seconds
    )
