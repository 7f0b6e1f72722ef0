"""Limits concurrent dumps on a node, by number and by the memory of the processes that dump.

A workload that waits for its turn runs on until then: it is frozen when its dump can begin. The members of a gang are
frozen together, all of them, on however many nodes: their freezes take no turn, or two gangs could deadlock; their
dumps do. The dump with the least time left, after its own estimated duration, comes first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, Histogram

DUMPS_AT_ONCE = 4
DUMPS_MEMORY_BYTES = 2 << 30
DUMPS_MEMORY_BYTES_EACH = 1 << 30
"""Measured (CRIU 4.2.1): usual dumps take less than 300 MiB, without the page cache of a store's files; 65,000
mappings of a process take 30 MiB, 45,000 open files with long names 250 MiB."""
BASE_BYTES = 192 << 20
"""Fixed cost of a dumping process: itself, its buffers and its threads."""
PAGES_SHARE = 1 / 256
"""Cost per byte of the workload: 16 bytes for each page of 4 KiB, to find pages that the store has already."""
BYTES_PER_SECOND = 200e6
"""Conservative estimate of a dump's speed, for the order of the queue."""
_WAITED = (0.01, 0.1, 1, 5, 15, 60, 300, 900)


class DumpMetrics:
    """Prometheus metrics of a node's dumps."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.running = Gauge("cedana_sched_dumps_running", "Workloads that are dumped now.", registry=registry)
        self.waiting = Gauge(
            "cedana_sched_dumps_waiting", "Workloads that wait for their turn to be dumped.", registry=registry
        )
        self.waited = Histogram(
            "cedana_sched_dump_wait_duration_seconds", "How long they waited.", buckets=_WAITED, registry=registry
        )


@dataclass(order=True)
class _WaitingDump:
    latest_start: float
    uid: str
    cost: int = field(compare=False)
    came_at: float = field(compare=False)
    granted: asyncio.Future[bool] = field(compare=False)


class DumpBudget:
    """The dump slots of one node, by the uid of a checkpoint.

    Args:
        at_once: maximum number of concurrent dumps.
        memory_bytes: maximum of their memory together; a single dump may always run.
        metrics: updated on every change.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        at_once: int = DUMPS_AT_ONCE,
        memory_bytes: int = DUMPS_MEMORY_BYTES,
        metrics: DumpMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_once = at_once
        self._memory_bytes = memory_bytes
        self._metrics = metrics
        self._clock = clock
        self._running: dict[str, int] = {}
        self._waiting: dict[str, _WaitingDump] = {}

    async def wait_for_slot(self, uid: str, size_bytes: int, seconds_left: float | None) -> bool:
        """Return True once the checkpoint has its slot, until `free_slot`; False if it was given back before.

        Args:
            uid: of a checkpoint; a repeated call waits for the same slot.
            size_bytes: approximate size of the dump.
            seconds_left: until its deadline; None: any time.
        """
        if uid in self._running:
            return True
        turn = self._waiting.get(uid)
        if turn is None:
            now = self._clock()
            left = float("inf") if seconds_left is None else seconds_left
            latest_start = now + left - size_bytes / BYTES_PER_SECOND
            granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            turn = _WaitingDump(latest_start, uid, BASE_BYTES + int(size_bytes * PAGES_SHARE), now, granted)
            self._waiting[uid] = turn
            self._grant_waiting_slots()
        return await asyncio.shield(turn.granted)

    def free_slot(self, uid: str) -> None:
        """Free the slot, or leave the queue: the dump has ended, or is not needed any more."""
        self._running.pop(uid, None)
        if (turn := self._waiting.pop(uid, None)) is not None:
            turn.granted.set_result(False)
        self._grant_waiting_slots()

    def _grant_waiting_slots(self) -> None:
        """Grant slots in order: a small dump that overtook a large one would let it starve."""
        for turn in sorted(self._waiting.values()):
            taken = sum(self._running.values())
            is_full = len(self._running) >= self._at_once or taken + turn.cost > self._memory_bytes
            if self._running and is_full:
                break
            del self._waiting[turn.uid]
            self._running[turn.uid] = turn.cost
            turn.granted.set_result(True)
            if self._metrics is not None:
                self._metrics.waited.observe(self._clock() - turn.came_at)
        if self._metrics is not None:
            self._metrics.running.set(len(self._running))
            self._metrics.waiting.set(len(self._waiting))
