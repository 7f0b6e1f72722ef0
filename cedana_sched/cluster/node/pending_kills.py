"""Pods that are frozen and committed, to be killed as soon as their deletion is seen, and not before.

A container that dies in a pod without a deletion timestamp is a failure, which a Job counts. So a pod that is to end
stays frozen, its kill pending, until its deletion shows (in a watch, or by the kubelet's preStop call). The kubelet
alone cannot end the pod: SIGTERM does not reach frozen processes. No pod is killed here by a timeout: the coordinator,
which records when an eviction was released, orders the end of a pod that is not deleted.

If the kubelet restarts containers that die, the kubelet must have seen the deletion first; otherwise it restarts the
pod's work from scratch in place. The kubelet may see the deletion later than the agent by as long as a reconnect to the
API server takes. The kubelet's preStop call shows that it has seen the deletion, so the agent waits for that call.

Pending kills are recorded on the host's /run, so that a restarted agent still performs them.
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

from cedana_sched.model.path_segment_validation import validate_segment
from cedana_sched.runtime_handler.atomic_write import is_temporary_name, write_atomically

log = structlog.get_logger()

KUBELET_SECONDS = 30.0
"""Maximum lag of a kubelet behind the agent in seeing a deletion; the kubelet mostly calls within a second."""


@dataclass
class _PodState:
    """State of one pod. Times are the loop's."""

    ordered_by: str | None = None
    """Uid of the checkpoint that ordered the kill; empty: unreadable, matches the next checkpoint that orders it;
    None: no kill is pending."""
    deleted: float | None = None
    """When the deletion was seen."""
    called: float = -math.inf
    """When the kubelet last made a preStop call for a container of the pod."""
    starts_again: bool = False
    """Whether the kubelet restarts containers that die before it has seen the deletion."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once no kill of the pod is pending."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_pending(self) -> bool:
        return self.ordered_by is not None

    def is_ordered_by(self, checkpoint_uid: str) -> bool:
        return self.ordered_by in {"", checkpoint_uid}


class PendingKills:
    """The pending kills of one node. An async context manager; the records persist after its exit.

    The watcher of this node's pods must call `on_deleted` for each pod with a deletion timestamp, also after a restart,
    and `drop` for each pod that no longer exists; the preStop server awaits `on_container_ending` before its answer.

    Args:
        directory: holds a file per pending kill, named by the pod's uid, with the uid of the checkpoint.
        kill: ends every process of a pod; returns when they have exited.
        kubelet_seconds: how long a deletion waits for the kubelet's call.
    """

    def __init__(
        self, directory: Path, kill: Callable[[str], Awaitable[None]], kubelet_seconds: float = KUBELET_SECONDS
    ) -> None:
        self._kubelet_seconds = kubelet_seconds
        self._directory = directory
        self._kill = kill
        self._pods: dict[str, _PodState] = {}
        """By uid."""

    async def __aenter__(self) -> Self:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            if is_temporary_name(path.name):
                path.unlink()
            else:
                self._state_of(path.name).ordered_by = path.read_text()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to do: pending kills are recorded on disk."""

    def __contains__(self, pod_uid: str) -> bool:
        pod = self._pods.get(pod_uid)
        return pod is not None and pod.is_pending

    async def add(self, pod_uid: str, checkpoint_uid: str) -> bool:
        """End this frozen pod as soon as it is deleted.

        Returns True if the pod is deleted already, once no process of it remains.

        Raises:
            FreezerError: the pod is deleted, and some process did not exit in time.
            OSError: the record cannot be written; no kill is pending.
        """
        pod = self._state_of(pod_uid)
        if not pod.ordered_by:
            write_atomically(self._file(pod_uid), checkpoint_uid.encode())
            pod.ordered_by = checkpoint_uid
            pod.released.clear()
        if pod.deleted is None:
            return False
        await self._end_deleted(pod_uid, pod)
        return True

    async def kill_now(self, pod_uid: str, checkpoint_uid: str) -> bool:
        """End the pod without waiting for its deletion; False if this checkpoint has not ordered its kill.

        Raises:
            FreezerError: some process did not exit in time.
        """
        pod = self._pods.get(pod_uid)
        if pod is None or not pod.is_ordered_by(checkpoint_uid):
            return False
        log.warning("pod was released and is not deleted: killed anyway", pod=pod_uid)
        await self._kill_and_release(pod_uid, pod)
        return True

    async def cancel(self, pod_uid: str, checkpoint_uid: str) -> None:
        """Undo `add` if this checkpoint ordered the kill. No effect once the deletion has been seen."""
        if (pod := self._pods.get(pod_uid)) is None:
            return
        async with pod.turn:  # not while the pod is being ended
            if pod.deleted is None and pod.is_ordered_by(checkpoint_uid):
                self._clear_pending_kill(pod_uid, pod)

    async def on_deleted(self, pod_uid: str, *, starts_again: bool = False) -> None:
        """Record the pod's deletion timestamp. If its kill is pending, returns when no process of it remains.

        Args:
            pod_uid: the pod whose deletion the watch shows.
            starts_again: whether the pod's kubelet restarts containers that die before it has seen the deletion, and
                makes a preStop call once it has seen the deletion.

        Raises:
            FreezerError: some process did not exit in time.
        """
        pod = self._state_of(pod_uid)
        if pod.deleted is None:
            pod.deleted = asyncio.get_running_loop().time()
        pod.starts_again = pod.starts_again or starts_again
        await self._end_deleted(pod_uid, pod)

    async def on_container_ending(self, pod_uid: str) -> None:
        """Record that the kubelet ends a container of the pod; returns as `on_deleted` does.

        This is no proof of a deletion: a failed probe or a dead sandbox ends containers of a pod that keeps running.

        Raises:
            FreezerError: some process did not exit in time.
        """
        pod = self._state_of(pod_uid)
        pod.called = asyncio.get_running_loop().time()
        if pod.is_pending:
            await self._kill_and_release(pod_uid, pod)

    def drop(self, pod_uid: str) -> None:
        """Drop the state of a pod that no longer exists."""
        if (pod := self._pods.pop(pod_uid, None)) is not None:
            self._clear_pending_kill(pod_uid, pod)

    def _state_of(self, pod_uid: str) -> _PodState:
        return self._pods.setdefault(pod_uid, _PodState())

    async def _end_deleted(self, pod_uid: str, pod: _PodState) -> None:
        if pod.is_pending and pod.starts_again:
            await self._wait_for_kubelet(pod)
        if pod.is_pending:
            await self._kill_and_release(pod_uid, pod)

    async def _kill_and_release(self, pod_uid: str, pod: _PodState) -> None:
        """Serialize kills of one pod: the watch and the kubelet's call arrive together."""
        async with pod.turn:
            await self._kill(pod_uid)
            self._clear_pending_kill(pod_uid, pod)

    async def _wait_for_kubelet(self, pod: _PodState) -> None:
        """Wait for the kubelet's call, which may precede the deletion seen here; at most `kubelet_seconds`."""
        assert pod.deleted is not None  # noqa: S101  # called for deleted pods alone
        if pod.called > pod.deleted - self._kubelet_seconds:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(pod.deleted + self._kubelet_seconds):
                await pod.released.wait()

    def _clear_pending_kill(self, pod_uid: str, pod: _PodState) -> None:
        pod.ordered_by = None
        pod.released.set()
        self._file(pod_uid).unlink(missing_ok=True)

    def _file(self, pod_uid: str) -> Path:
        return self._directory / validate_segment("pod", pod_uid)
