"""Pods that are frozen and committed: killed the moment their deletion is seen, and not before.

A container that dies in a pod which nobody has deleted is a failure, which a Job counts. So a pod that is to end stays
frozen, and doomed, until its deletion shows (in a watch, or by the kubelet's preStop call). The kubelet alone could not
end it: SIGTERM does not reach what is frozen. Nothing is killed here by time: the coordinator, which keeps when an
eviction was released, orders the end of a pod that is not deleted all the same.

Where the kubelet starts again what dies, it must have seen the deletion first, or it starts the pod's work from its
beginning, in its place; it may see it later than the agent by as long as it takes to connect to the API server again.
Its preStop call shows that, and is waited for.

Who is doomed is written down on the host's /run, so that an agent that is started anew still ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

import structlog

log = structlog.get_logger()

KUBELET_SECONDS = 30.0
"""How much later than the agent a kubelet may see a deletion; it mostly calls within a second."""


class DoomedPods:
    """The doomed pods of one node. An async context manager; leaving it forgets nobody.

    Args:
        directory: holds a file per doomed pod, by its uid; in it stands for which checkpoint.
        kill: ends every process of a pod; returns when they have gone.
        kubelet_seconds: how long a deletion waits for the kubelet's call.
    """

    def __init__(
        self, directory: Path, kill: Callable[[str], Awaitable[None]], kubelet_seconds: float = KUBELET_SECONDS
    ) -> None:
        self._kubelet_seconds = kubelet_seconds
        self._released: dict[str, asyncio.Event] = {}
        self._starts_again: set[str] = set()
        """Whose kubelet starts again what dies before it has seen their deletion."""
        self._called: dict[str, float] = {}
        """When the kubelet last called before it ends a container of a pod (the loop's time)."""
        self._directory = directory
        self._kill = kill
        self._deleted: dict[str, float] = {}
        """When the deletion of a pod was seen (the loop's time)."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._doomed: set[str] = set()

    async def __aenter__(self) -> Self:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._doomed = {path.name for path in self._directory.iterdir()}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Who is doomed is written down."""

    def __contains__(self, pod_uid: str) -> bool:
        return pod_uid in self._doomed

    async def doom(self, pod_uid: str, checkpoint_uid: str) -> bool:
        """End this frozen pod as soon as it is deleted. Returns True, once nothing of it is left, if it is already.

        Raises:
            FreezerError: it is deleted, and some process did not go in time.
        """
        if pod_uid not in self._doomed:
            (self._directory / pod_uid).write_text(checkpoint_uid)
            self._doomed.add(pod_uid)
        if pod_uid not in self._deleted:
            return False
        await self._end_deleted(pod_uid)
        return True

    async def end(self, pod_uid: str, checkpoint_uid: str) -> None:
        """Do not wait for its deletion any more; nothing happens unless this checkpoint dooms it.

        Raises:
            FreezerError: some process did not go in time.
        """
        if pod_uid in self._doomed and self._doomed_by(pod_uid) == checkpoint_uid:
            log.warning("pod was released and is not deleted: killed anyway", pod=pod_uid)
            await self._end(pod_uid)

    async def spare(self, pod_uid: str, checkpoint_uid: str) -> None:
        """It is not to end after all, if this checkpoint is why it was. Too late once its deletion has been seen."""
        async with self._turns.setdefault(pod_uid, asyncio.Lock()):  # not while it is being ended
            if pod_uid in self._doomed and pod_uid not in self._deleted and self._doomed_by(pod_uid) == checkpoint_uid:
                self._release(pod_uid)

    async def deleted(self, pod_uid: str, *, starts_again: bool = False) -> None:
        """The pod has a deletion timestamp. Returns when nothing of it is left, if it is doomed; else at once.

        Args:
            pod_uid: whose deletion the watch shows.
            starts_again: whether its kubelet starts again what dies before it has seen the deletion, and calls when it
                has seen it.

        Raises:
            FreezerError: some process did not go in time.
        """
        self._deleted.setdefault(pod_uid, asyncio.get_running_loop().time())
        if starts_again:
            self._starts_again.add(pod_uid)
        await self._end_deleted(pod_uid)

    async def ending(self, pod_uid: str) -> None:
        """The kubelet ends a container of the pod; returns as `deleted` does.

        It is no proof of a deletion: a probe that fails, or a sandbox that has died, ends containers of a pod that
        goes on.

        Raises:
            FreezerError: some process did not go in time.
        """
        self._called[pod_uid] = asyncio.get_running_loop().time()
        if pod_uid in self._doomed:
            await self._end(pod_uid)

    def gone(self, pod_uid: str) -> None:
        """The pod is no more: forget it."""
        self._deleted.pop(pod_uid, None)
        self._starts_again.discard(pod_uid)
        self._called.pop(pod_uid, None)
        self._release(pod_uid)

    async def _end_deleted(self, pod_uid: str) -> None:
        if pod_uid in self._doomed and pod_uid in self._starts_again:
            await self._wait_for_kubelet(pod_uid)
        if pod_uid in self._doomed:
            await self._end(pod_uid)

    async def _end(self, pod_uid: str) -> None:
        """One at a time: the watch and the kubelet's call come together."""
        async with self._turns.setdefault(pod_uid, asyncio.Lock()):
            await self._kill(pod_uid)
            self._release(pod_uid)

    def _doomed_by(self, pod_uid: str) -> str:
        try:
            return (self._directory / pod_uid).read_text()
        except FileNotFoundError:
            return ""

    async def _wait_for_kubelet(self, pod_uid: str) -> None:
        """Until it has called, before the deletion was seen here perhaps; or for as long as it may be late."""
        deleted = self._deleted[pod_uid]
        if self._called.get(pod_uid, -math.inf) > deleted - self._kubelet_seconds:
            return
        released = self._released.setdefault(pod_uid, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deleted + self._kubelet_seconds):
                await released.wait()

    def _release(self, pod_uid: str) -> None:
        if released := self._released.pop(pod_uid, None):
            released.set()
        self._doomed.discard(pod_uid)
        (self._directory / pod_uid).unlink(missing_ok=True)
