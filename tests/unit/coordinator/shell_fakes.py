"""Ports of the shell in memory: each may be told to fail, die or take its time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import ClassVar

from cedana_sched.adapter.contract import Report
from cedana_sched.coordinator.core import NodeLost, PublishEvent
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.orders import Dump, Order, Outcome, Progress
from cedana_sched.model.preemption import Release, Signal
from cedana_sched.model.records import Record, Transfer
from tests.unit.coordinator.core.simulated_node import SimulatedAgent, World
from tests.unit.coordinator.virtual_clock import VirtualClock


class MemoryJournal:
    """Implements `ports.Journal`; outlives the coordinators that write it."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.saves = 0
        self.failures: list[Exception] = []
        self.power_fails_after: int | None = None
        """The save with this number is written, and nothing after it happens in that coordinator's life."""

    async def load(self) -> tuple[Record, ...]:
        return tuple(self.records.values())

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        for record in records:
            self.records[record.uid] = record
        for record in forget:
            del self.records[record.uid]
        self.saves += 1
        if self.saves == self.power_fails_after:
            self.power_fails_after = None
            raise PowerFailureError


class PowerFailureError(Exception):
    """The coordinator ends here, between writing and doing."""


class MemoryAdapter:
    """Implements `Adapter` and `HoldsEvictions`; repeats what is pending to each new reader."""

    name: ClassVar[str] = "memory"

    def __init__(self) -> None:
        self.pending: list[Report] = []
        self.live: asyncio.Queue[Report | Exception | None] = asyncio.Queue()
        self.readers = 0
        self.released: list[Release] = []
        self.release_failures: list[Exception] = []
        self.held: list[str] = []
        self.until: float | None = None

    def report(self, report: Report) -> None:
        self.pending.append(report)
        self.live.put_nowait(report)

    async def reports(self) -> AsyncIterator[Report]:
        self.readers += 1
        self.live = asyncio.Queue()
        for report in list(self.pending):
            yield report
        while (item := await self.live.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    async def release(self, release: Release) -> None:
        if self.release_failures:
            raise self.release_failures.pop(0)
        self.released.append(release)

    async def hold(self, signal: Signal) -> float | None:
        self.held.append(signal.uid)
        return self.until


class MemoryAgents:
    """Implements `ports.Agents` with the simulated agent of one node; a dump takes `dump_seconds`."""

    def __init__(self, world: World, clock: VirtualClock, agent: SimulatedAgent, dump_seconds: float = 5.0) -> None:
        self.world = world
        self.clock = clock
        self.agent = agent
        self.dump_seconds = dump_seconds
        self.performed: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self.busy = 0
        self.busiest = 0
        self.failures: dict[str, list[Exception | None]] = {}
        """By order: what the next ones meet. None: the stream ends without an answer."""
        self.node_changes: asyncio.Queue[NodeLost] = asyncio.Queue()

    async def perform(self, node: str, order: Order) -> AsyncIterator[Outcome]:
        kind = type(order).__name__
        self.performed[kind] += 1
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await asyncio.sleep(0)
            if failures := self.failures.get(kind):
                failure = failures.pop(0)
                if failure is not None:
                    raise failure
                return
            async for outcome in self._outcomes(order):
                yield outcome
        finally:
            self.busy -= 1

    def repeat_order(self, node: str, order: Order) -> None:
        self.repeated[type(order).__name__] += 1

    async def _outcomes(self, order: Order) -> AsyncIterator[Outcome]:
        outcome = self.agent.perform(order, self.clock.now())
        if isinstance(order, Dump) and outcome is None:
            yield Progress(order.checkpoint_uid, Transfer(read_bytes=1))
            await self.clock.wait_until(self.clock.now() + self.dump_seconds)
            dumps = self.agent.dumps
            if order.checkpoint_uid in dumps:
                dumps[order.checkpoint_uid] = (0.0, *dumps[order.checkpoint_uid][1:])
            for finished in self.agent.due(self.clock.now()):
                yield finished
        elif outcome is not None:
            yield outcome
        else:
            raise RetryableError("the store is down")

    async def lost_nodes(self) -> AsyncIterator[NodeLost]:
        while True:
            yield await self.node_changes.get()


class MemoryListener:
    """Implements `ports.EventListener`."""

    def __init__(self) -> None:
        self.told_kinds: list[str] = []
        self.texts: list[str] = []

    def on_event(self, tell: PublishEvent) -> None:
        self.told_kinds.append(tell.kind)
        self.texts.append(tell.text)
