"""Publishes the node's most urgent notice of interruption, and withdraws it when its source does.

A notice stays published while the metadata server does not answer: silence is no withdrawal. Nor is a notice of the
kubelet's withdrawn later because the node's provider is not detected yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from cedana_sched.cluster.node.interruptions.metadata_server import MetadataError
from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch
from cedana_sched.kube.errors import ApiError
from cedana_sched.model.objects.node_interruption import InterruptionSource, NodeInterruption, most_urgent
from cedana_sched.retrying import AWAITED, Backoff, retry

log = structlog.get_logger(__name__)

FindWatches = Callable[[], Awaitable[Sequence[NoticeWatch]]]
Publish = Callable[[NodeInterruption | None], Awaitable[None]]
ReadPublished = Callable[[], Awaitable[NodeInterruption | None]]


class InterruptionMonitor:
    """Reads all watches of one node. Run `run` as a task.

    Args:
        watches: those that need no provider: all of the kubelet's.
        find_watches: returns those of the node's provider; it may take a minute.
        publish: writes the notice on the node, or removes it (None); raises ApiError.
        read_published: returns the notice on the node, perhaps of an earlier agent; raises ApiError.
    """

    def __init__(
        self,
        watches: Sequence[NoticeWatch],
        find_watches: FindWatches,
        publish: Publish,
        read_published: ReadPublished,
    ) -> None:
        self._watches = list(watches)
        self._find_watches = find_watches
        self._is_found = False
        self._publish = publish
        self._read_published = read_published
        self._notices: dict[str, NodeInterruption | None] = {}
        """By name of the watch; absent until it was read once."""
        self._changed = asyncio.Event()
        self._changed.set()

    async def run(self) -> None:
        """Read and publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish_changes(), name="publication of interruptions")
            for watch in self._watches:
                group.create_task(self._read_repeatedly(watch), name=watch.name)
            found = await self._find_watches()
            self._watches.extend(found)
            self._is_found = True
            self._changed.set()
            for watch in found:
                group.create_task(self._read_repeatedly(watch), name=watch.name)

    async def _read_repeatedly(self, watch: NoticeWatch) -> None:
        backoff = Backoff(AWAITED)  # each second of a notice counts, and only this node calls its metadata server
        while True:
            try:
                notice = await watch.read()
            except MetadataError as error:
                pause = backoff.next_pause()
                if backoff.failures == 1:
                    log.warning("notices not read, trying again", what=watch.name, error=str(error))
            except Exception:  # a defect in what a provider answers must not end the dumps of this agent
                pause = backoff.next_pause()
                log.exception("notices not read, trying again", what=watch.name)
            else:
                if backoff.failures > 0:
                    log.info("notices are read again", what=watch.name)
                backoff.reset()
                self._set_notice(watch.name, notice)
                pause = watch.poll_seconds
            await asyncio.sleep(pause)

    def _set_notice(self, name: str, notice: NodeInterruption | None) -> None:
        before = self._notices.get(name)
        if name in self._notices and (notice.is_same_notice(before) if notice is not None else before is None):
            return
        self._notices[name] = notice
        if notice is not None:
            log.warning("the node is interrupted", what=name, kind=notice.kind, not_before=notice.not_before)
        elif before is not None:
            log.info("the notice is withdrawn", what=name)
        self._changed.set()

    async def _publish_changes(self) -> None:
        published: list[NodeInterruption | None] = []
        while True:
            await self._changed.wait()
            self._changed.clear()
            if published != [self._current()] and await self._may_publish():
                published = [await retry("notice on the node", self._publish_current, ApiError, profile=AWAITED)]

    async def _may_publish(self) -> bool:
        """Return whether enough is read to publish the current notice, or that there is none."""
        if self._current() is not None:
            return True
        if len(self._notices) < len(self._watches):
            return False
        if self._is_found:
            return True
        published = await retry("notice of the node", self._read_published, ApiError, profile=AWAITED)
        return published is not None and published.source is InterruptionSource.KUBELET

    async def _publish_current(self) -> NodeInterruption | None:
        current = self._current()
        await self._publish(current)
        return current

    def _current(self) -> NodeInterruption | None:
        return most_urgent(notice for notice in self._notices.values() if notice is not None)
