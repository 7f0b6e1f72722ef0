"""A notice of an earlier agent is withdrawn once its own source has none, whatever other sources still hide."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from cedana_sched.cluster.node.interruptions import interruption_monitor
from cedana_sched.cluster.node.interruptions.interruption_monitor import InterruptionMonitor
from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.model.objects.node_interruption import InterruptionKind, InterruptionSource, NodeInterruption
from cedana_sched.retrying import Profile

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def notice_of(source: InterruptionSource) -> NodeInterruption:
    kind = InterruptionKind.SHUTDOWN if source is InterruptionSource.KUBELET else InterruptionKind.TERMINATION
    return NodeInterruption.from_times(source, kind, NOW, NOW)


SHUTDOWN, SPOT = notice_of(InterruptionSource.KUBELET), notice_of(InterruptionSource.AWS)


class Node:
    """A node whose provider is detected when the test says so."""

    def __init__(self, published: NodeInterruption | None) -> None:
        self.published = published
        self.writes: asyncio.Queue[NodeInterruption | None] = asyncio.Queue()
        self.read_failures = 0
        self.is_detected = asyncio.Event()
        self.shutdown: asyncio.Queue[NodeInterruption | None] = asyncio.Queue()
        self.spot: asyncio.Queue[NodeInterruption | None] = asyncio.Queue()

    async def publish(self, notice: NodeInterruption | None) -> None:
        self.published = notice
        self.writes.put_nowait(notice)

    async def read_published(self) -> NodeInterruption | None:
        if self.read_failures:
            self.read_failures -= 1
            raise ApiUnavailableError("no answer")
        return self.published

    async def find_watches(self) -> list[NoticeWatch]:
        await self.is_detected.wait()
        return [NoticeWatch("spot", self.spot.get, 0.0)]

    async def next_write(self) -> NodeInterruption | None:
        return await asyncio.wait_for(self.writes.get(), 60)


@contextlib.asynccontextmanager
async def monitored(node: Node, *, has_shutdown_watch: bool = True) -> AsyncIterator[None]:
    watches = [NoticeWatch("shutdown", node.shutdown.get, 0.0)] if has_shutdown_watch else []
    monitor = InterruptionMonitor(watches, node.find_watches, node.publish, node.read_published)
    running = asyncio.create_task(monitor.run())
    try:
        yield
        assert not running.done()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_shutdown_of_an_earlier_boot_is_withdrawn_before_the_provider_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interruption_monitor, "AWAITED", Profile(min=0.001, multiplier=0.001, max=0.01))
    node = Node(SHUTDOWN)
    node.read_failures = 2
    async with monitored(node):
        await turns()
        assert node.writes.empty(), "the kubelet's record is not read yet"
        node.shutdown.put_nowait(None)
        assert await node.next_write() is None
        node.is_detected.set()
        node.spot.put_nowait(SPOT)
        assert await node.next_write() == SPOT


async def test_shutdown_is_withdrawn_where_shutdowns_are_not_watched_any_more() -> None:
    node = Node(SHUTDOWN)
    async with monitored(node, has_shutdown_watch=False):
        assert await node.next_write() is None


async def test_shutdown_that_is_cancelled_is_withdrawn_before_the_provider_is_detected() -> None:
    node = Node(None)
    async with monitored(node):
        node.shutdown.put_nowait(SHUTDOWN)
        assert await node.next_write() == SHUTDOWN
        node.shutdown.put_nowait(None)
        assert await node.next_write() is None


async def test_notice_of_a_provider_stays_until_the_provider_is_read() -> None:
    node = Node(SPOT)
    async with monitored(node):
        node.shutdown.put_nowait(None)
        await turns()
        node.is_detected.set()
        await turns()
        assert node.writes.empty()
        node.spot.put_nowait(None)
        assert await node.next_write() is None
