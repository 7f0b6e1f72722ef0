"""Removes marks that are stale, and says whether that proves that the scheduler asks no more: for `adapter.evictions`.

A mark is stale because nobody asks, or because nobody could write it: another webhook of pods that is away, say, with
`failurePolicy: Fail`, keeps ours from refreshing it, and does not see the scheduler's evictions, which are writes of
pods/status. So a mark proves nothing while its removal is refused, nor until whoever hears the scheduler has had the
time to write one again. What does prove it is a release: whoever still asks is let through by it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from datetime import datetime

import structlog

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ApiError, ConflictError
from cedana_sched.kube.objects import Pod
from cedana_sched.kube.resources import PODS
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import STALE_SECONDS, EvictionMark, read_mark

log = structlog.get_logger(__name__)

CACHE_BEHIND_SECONDS = 1.0
"""After a mark was found changed, until it is looked at again: the cache shows the change by then, most likely."""
SHOWS_SECONDS = STALE_SECONDS
"""In that time a scheduler that asks has asked."""


class MarkRemoval:
    """What it remembers of a signal, it may forget: it looks longer then.

    Args:
        api: where the marks are.
        now: the time of day.
    """

    def __init__(self, api: Api, now: Callable[[], datetime]) -> None:
        self._api = api
        self._now = now
        self._shows_at: dict[str, float] = {}
        """By uid of the signal, by the loop's time: when it shows whether the scheduler asks whose marks could not be
        removed; never, while they cannot."""
        self._gone_by: dict[str, float] = {}
        """By uid of the signal, by the loop's time: when whoever is asked for has gone, since it was released."""

    def released(self, signal_uid: str) -> None:
        """The scheduler's attempts go through from now on; said again, it changes nothing."""
        self._gone_by.setdefault(signal_uid, _seconds() + SHOWS_SECONDS)

    def is_in_doubt(self, signal_uid: str) -> bool:
        """Whether nobody can say yet if its scheduler still asks."""
        return signal_uid in self._shows_at

    def asked(self, signal_uid: str) -> None:
        """Its scheduler asks, beyond doubt."""
        self._shows_at.pop(signal_uid, None)

    def forget(self, signal_uid: str) -> None:
        """Nothing more will be asked of it."""
        self._shows_at.pop(signal_uid, None)
        self._gone_by.pop(signal_uid, None)

    async def settle(self, signal_uid: str, pods: Iterable[Pod]) -> float:
        """Remove the marks of this signal's pods, which are stale.

        Returns:
            Seconds until it is to be looked at again; 0 if the scheduler asks for none of them.

        Raises:
            RetryableError: a mark can be neither removed nor found absent: nobody can say now if the scheduler asks.
        """
        is_over = self._gone_by.get(signal_uid, math.inf) <= _seconds()
        for pod in pods:
            if names.EVICTION_REQUESTED not in pod.metadata.annotations:
                continue
            try:
                is_removed = await self._remove(pod, is_over=is_over)
            except ApiError as error:
                self._shows_at[signal_uid] = math.inf
                name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                message = f"whether pod {name} is still to be evicted cannot be told now: {error.message}"
                raise RetryableError(message, remedy="it is looked at again") from error
            if not is_removed:
                return CACHE_BEHIND_SECONDS
        if is_over or signal_uid not in self._shows_at:
            return 0.0
        if self._shows_at[signal_uid] == math.inf:
            self._shows_at[signal_uid] = _seconds() + SHOWS_SECONDS
        return max(0.0, self._shows_at[signal_uid] - _seconds())

    async def _remove(self, pod: Pod, *, is_over: bool) -> bool:
        """Whether its mark is no more, or (`is_over`) is a remnant; False where the pod is not what it was."""
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
            log.warning("eviction mark stays", namespace=metadata.namespace, pod=metadata.name, problem=str(error))
            if not is_over:
                raise
        return True


def fresh_mark(pod: Pod, now: datetime) -> EvictionMark | None:
    """What says that this pod's scheduler asks for it; None where nothing does, or the pod does not run."""
    mark = read_mark(pod.metadata.annotations)
    return mark if mark is not None and mark.is_fresh(now) and is_running(pod) else None


def is_running(pod: Pod) -> bool:
    """Whether there is something to evict."""
    return pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None


def _seconds() -> float:
    return asyncio.get_running_loop().time()
