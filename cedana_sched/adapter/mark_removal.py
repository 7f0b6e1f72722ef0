"""Removes stale eviction marks, and decides whether their absence proves that the scheduler stopped requesting.

A mark is stale because the scheduler has stopped, or because the mark could not be refreshed: for example, another
unavailable pod webhook with `failurePolicy: Fail` blocks the refresh, but not the scheduler's evictions, which are
writes of pods/status. A mark is therefore no evidence while its removal is refused, nor until the component that
refuses the scheduler has had time to write a new mark. A release is proof: it admits every scheduler that still
retries.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from datetime import datetime

import structlog

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ApiError, ConflictError
from cedana_sched.kube.resources import PODS
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import STALE_SECONDS, EvictionMark, read_mark

log = structlog.get_logger(__name__)

CACHE_BEHIND_SECONDS = 1.0
"""Delay after a mark was found changed until the next check, by when the cache has most likely caught up."""
SHOWS_SECONDS = STALE_SECONDS
"""Time in which a scheduler that still requests the eviction has retried."""


class MarkRemoval:
    """Per-signal state of mark removal. The state may be lost; decisions then take longer.

    Args:
        api: client for the pods.
        now: the current time.
    """

    def __init__(self, api: Api, now: Callable[[], datetime]) -> None:
        self._api = api
        self._now = now
        self._shows_at: dict[str, float] = {}
        """By uid of the signal, in loop time: when a scheduler whose marks could not be removed must have retried;
        infinity while they cannot be removed."""
        self._gone_by: dict[str, float] = {}
        """By uid of a released signal, in loop time: when a scheduler that still retries must have evicted."""

    def on_released(self, signal_uid: str) -> None:
        """Record that the scheduler's attempts are admitted from now on. Idempotent."""
        self._gone_by.setdefault(signal_uid, _loop_time() + SHOWS_SECONDS)

    def is_in_doubt(self, signal_uid: str) -> bool:
        """Return whether it is unknown if the scheduler still requests the eviction."""
        return signal_uid in self._shows_at

    def on_eviction_requested(self, signal_uid: str) -> None:
        """Record that the scheduler certainly requests the eviction."""
        self._shows_at.pop(signal_uid, None)

    def forget_signal(self, signal_uid: str) -> None:
        """Drop the signal's state."""
        self._shows_at.pop(signal_uid, None)
        self._gone_by.pop(signal_uid, None)

    async def remove_stale_marks(self, signal_uid: str, pods: Iterable[Pod]) -> float:
        """Remove the stale marks of this signal's pods.

        Returns:
            Seconds until the next check; 0 if the scheduler requests the eviction of none of the pods.

        Raises:
            RetryableError: a mark can neither be removed nor found absent, so the scheduler's request is unknown.
        """
        is_over = self._gone_by.get(signal_uid, math.inf) <= _loop_time()
        for pod in pods:
            if names.EVICTION_REQUESTED not in pod.metadata.annotations:
                continue
            try:
                is_removed = await self._remove(pod, is_over=is_over)
            except ApiError as error:
                self._shows_at[signal_uid] = math.inf
                name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                message = f"whether pod {name} is still to be evicted cannot be determined now: {error.message}"
                raise RetryableError(message, remedy="it is looked at again") from error
            if not is_removed:
                return CACHE_BEHIND_SECONDS
        if is_over or signal_uid not in self._shows_at:
            return 0.0
        if self._shows_at[signal_uid] == math.inf:
            self._shows_at[signal_uid] = _loop_time() + SHOWS_SECONDS
        return max(0.0, self._shows_at[signal_uid] - _loop_time())

    async def _remove(self, pod: Pod, *, is_over: bool) -> bool:
        """Return whether the mark is gone, or (`is_over`) is a remnant; False if the pod has changed."""
        metadata = pod.metadata
        seen = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        patch = {"metadata": {**seen, "annotations": {names.EVICTION_REQUESTED: None}}}
        try:
            await self._api.patch(PODS, metadata.name, metadata.namespace, patch)
        except AbsentError:
            return True
        except ConflictError:
            return False
        except ApiError as error:
            there = await self._api.find(PODS, metadata.name, metadata.namespace, into=Pod)
            if (
                there is None
                or there.metadata.uid != metadata.uid
                or names.EVICTION_REQUESTED not in there.metadata.annotations
            ):
                return True
            if not is_running(there) or there.is_evicted or fresh_mark(there, self._now()) is not None:
                return False
            log.warning("eviction mark stays", namespace=metadata.namespace, pod=metadata.name, error=str(error))
            if not is_over:
                raise
        return True


def fresh_mark(pod: Pod, now: datetime) -> EvictionMark | None:
    """Return the pod's valid mark; None if there is none, or the pod is not running."""
    mark = read_mark(pod.metadata.annotations)
    return mark if mark is not None and mark.is_fresh(now) and is_running(pod) else None


def is_running(pod: Pod) -> bool:
    """Return whether the pod is running and not being deleted."""
    return pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
