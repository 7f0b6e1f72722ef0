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
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from cedana_sched.model.segments import segment
from cedana_sched.runtime.whole import is_hidden, write_whole

log = structlog.get_logger()

KUBELET_SECONDS = 30.0
"""How much later than the agent a kubelet may see a deletion; it mostly calls within a second."""


@dataclass
class _Pod:
    """What is known of one pod. Times are the loop's."""

    doomed_by: str | None = None
    """Uid of the checkpoint; empty: the one that orders next, for nobody can read any more which it was. None: none."""
    deleted: float | None = None
    """When its deletion was seen."""
    called: float = -math.inf
    """When the kubelet last called before it ends a container of it."""
    starts_again: bool = False
    """Whether its kubelet starts again what dies before it has seen the deletion."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is doomed no more."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_doomed(self) -> bool:
        return self.doomed_by is not None

    def is_doomed_by(self, checkpoint_uid: str) -> bool:
        return self.doomed_by in {"", checkpoint_uid}


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
        self._directory = directory
        self._kill = kill
        self._pods: dict[str, _Pod] = {}
        """By uid."""

    async def __aenter__(self) -> Self:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            if is_hidden(path.name):
                path.unlink()
            else:
                self._of(path.name).doomed_by = path.read_text()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Who is doomed is written down."""

    def __contains__(self, pod_uid: str) -> bool:
        pod = self._pods.get(pod_uid)
        return pod is not None and pod.is_doomed

    async def doom(self, pod_uid: str, checkpoint_uid: str) -> bool:
        """End this frozen pod as soon as it is deleted. Returns True, once nothing of it is left, if it is already.

        Raises:
            FreezerError: it is deleted, and some process did not go in time.
            OSError: it cannot be written down, and is not doomed.
        """
        pod = self._of(pod_uid)
        if not pod.doomed_by:
            write_whole(self._file(pod_uid), checkpoint_uid.encode())
            pod.doomed_by = checkpoint_uid
            pod.released.clear()
        if pod.deleted is None:
            return False
        await self._end_deleted(pod_uid, pod)
        return True

    async def end(self, pod_uid: str, checkpoint_uid: str) -> bool:
        """Do not wait for its deletion any more. False: nothing happens, for this checkpoint does not doom it.

        Raises:
            FreezerError: some process did not go in time.
        """
        pod = self._pods.get(pod_uid)
        if pod is None or not pod.is_doomed_by(checkpoint_uid):
            return False
        log.warning("pod was released and is not deleted: killed anyway", pod=pod_uid)
        await self._end(pod_uid, pod)
        return True

    async def spare(self, pod_uid: str, checkpoint_uid: str) -> None:
        """It is not to end after all, if this checkpoint is why it was. Too late once its deletion has been seen."""
        if (pod := self._pods.get(pod_uid)) is None:
            return
        async with pod.turn:  # not while it is being ended
            if pod.deleted is None and pod.is_doomed_by(checkpoint_uid):
                self._release(pod_uid, pod)

    async def deleted(self, pod_uid: str, *, starts_again: bool = False) -> None:
        """The pod has a deletion timestamp. Returns when nothing of it is left, if it is doomed; else at once.

        Args:
            pod_uid: whose deletion the watch shows.
            starts_again: whether its kubelet starts again what dies before it has seen the deletion, and calls when it
                has seen it.

        Raises:
            FreezerError: some process did not go in time.
        """
        pod = self._of(pod_uid)
        if pod.deleted is None:
            pod.deleted = asyncio.get_running_loop().time()
        pod.starts_again = pod.starts_again or starts_again
        await self._end_deleted(pod_uid, pod)

    async def ending(self, pod_uid: str) -> None:
        """The kubelet ends a container of the pod; returns as `deleted` does.

        It is no proof of a deletion: a probe that fails, or a sandbox that has died, ends containers of a pod that
        goes on.

        Raises:
            FreezerError: some process did not go in time.
        """
        pod = self._of(pod_uid)
        pod.called = asyncio.get_running_loop().time()
        if pod.is_doomed:
            await self._end(pod_uid, pod)

    def gone(self, pod_uid: str) -> None:
        """The pod is no more: forget it."""
        if (pod := self._pods.pop(pod_uid, None)) is not None:
            self._release(pod_uid, pod)

    def _of(self, pod_uid: str) -> _Pod:
        return self._pods.setdefault(pod_uid, _Pod())

    async def _end_deleted(self, pod_uid: str, pod: _Pod) -> None:
        if pod.is_doomed and pod.starts_again:
            await self._wait_for_kubelet(pod)
        if pod.is_doomed:
            await self._end(pod_uid, pod)

    async def _end(self, pod_uid: str, pod: _Pod) -> None:
        """One at a time: the watch and the kubelet's call come together."""
        async with pod.turn:
            await self._kill(pod_uid)
            self._release(pod_uid, pod)

    async def _wait_for_kubelet(self, pod: _Pod) -> None:
        """Until it has called, before the deletion was seen here perhaps; or for as long as it may be late."""
        assert pod.deleted is not None  # noqa: S101  # called for deleted pods alone
        if pod.called > pod.deleted - self._kubelet_seconds:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(pod.deleted + self._kubelet_seconds):
                await pod.released.wait()

    def _release(self, pod_uid: str, pod: _Pod) -> None:
        pod.doomed_by = None
        pod.released.set()
        self._file(pod_uid).unlink(missing_ok=True)

    def _file(self, pod_uid: str) -> Path:
        return self._directory / segment("pod", pod_uid)
