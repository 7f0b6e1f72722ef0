"""How much one node dumps at once: so many workloads, and what the processes that dump them take of its memory.

Whoever has to wait for his turn runs on until then: he is frozen when his dump can begin. The members of a gang are
frozen together, all of them, on however many nodes: they take no turn for that, or two gangs could wait for each other
for ever; their dumps do. Who has the least time left, after what his own dump will take of it, comes first.
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
"""Measured (CRIU 4.2.1): usual dumps take less than 300 MiB, what is cached of a store's files not counted; 65,000
mappings of a process take 30 MiB, 45,000 open files with long names 250 MiB."""
BASE_BYTES = 192 << 20
"""A process that dumps takes this much for itself, its buffers and its threads."""
PAGES_SHARE = 1 / 256
"""And 16 bytes for each page of 4 KiB, to find those that the store has already."""
BYTES_PER_SECOND = 200e6
"""A cautious guess at how fast a dump goes, for the order of those that wait."""
_WAITED = (0.01, 0.1, 1, 5, 15, 60, 300, 900)


class DumpMetrics:
    """What Prometheus hears of the dumps of a node."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.running = Gauge("cedana_sched_dumps_running", "Workloads that are dumped now.", registry=registry)
        self.waiting = Gauge(
            "cedana_sched_dumps_waiting", "Workloads that wait for their turn to be dumped.", registry=registry
        )
        self.waited = Histogram(
            "cedana_sched_dump_wait_duration_seconds", "How long they waited.", buckets=_WAITED, registry=registry
        )


@dataclass(order=True)
class _Turn:
    latest_start: float
    uid: str
    cost: int = field(compare=False)
    came_at: float = field(compare=False)
    granted: asyncio.Future[bool] = field(compare=False)


class DumpBudget:
    """The turns of one node, by the uid of a checkpoint.

    Args:
        at_once: so many are dumped at once.
        memory_bytes: what they may take together; one alone may always be dumped.
        metrics: shows them.
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
        self._waiting: dict[str, _Turn] = {}

    async def take(self, uid: str, size_bytes: int, seconds_left: float | None) -> bool:
        """Return when it is its turn, which it has until `give_back`; False: it was given back before it came.

        Args:
            uid: of a checkpoint; asked again, it is the same turn.
            size_bytes: what is to be dumped, roughly.
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
            turn = _Turn(latest_start, uid, BASE_BYTES + int(size_bytes * PAGES_SHARE), now, granted)
            self._waiting[uid] = turn
            self._grant()
        return await asyncio.shield(turn.granted)

    def give_back(self, uid: str) -> None:
        """Its dump is over, or nobody wants it any more."""
        self._running.pop(uid, None)
        if (turn := self._waiting.pop(uid, None)) is not None:
            turn.granted.set_result(False)
        self._grant()

    def _grant(self) -> None:
        """In order: a small one that could slip past a large one would let it starve."""
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
