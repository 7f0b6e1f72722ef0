"""The eviction of a saved pod: retried while the API server refuses it, for a minute, and then given up.

The pod stays frozen meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

import structlog

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.errors import AbsentError, ApiError, ConflictError

log = structlog.get_logger(__name__)

PATIENCE_SECONDS: Final = 60.0
_OUTAGES: Final = frozenset({0, 502, 503, 504})
"""Statuses without an answer of the API server; 0: there is none at all."""


class SavedPodEviction:
    """The evictions of one source, and since when each is refused; that may be lost, and then counts anew."""

    def __init__(self) -> None:
        self._refused_since: dict[str, float] = {}
        """By uid of the pod, in loop time."""

    async def attempt(self, pod: Metadata, eviction: Awaitable[None], by: str) -> str | None:
        """Perform the eviction that `by` has caused.

        Returns:
            Why the pod is to run on, because its eviction was refused for too long; None if it is evicted, or gone.

        Raises:
            ApiError: not evicted yet; another attempt is due.
        """
        refusal = None
        try:
            await eviction
        except (AbsentError, ConflictError) as error:  # evicted by another client meanwhile
            log.info("pod is gone already", namespace=pod.namespace, pod=pod.name, error=error.message)
        except ApiError as error:
            if not self._is_patience_over(pod.uid, error):
                raise
            refusal = f"the API server refuses its eviction: {error.message}"
            log.warning("saved pod is not evicted", namespace=pod.namespace, pod=pod.name, reason=refusal)
        else:
            log.info("saved pod evicted", namespace=pod.namespace, pod=pod.name, by=by)
        self._refused_since.pop(pod.uid, None)
        return refusal

    def _is_patience_over(self, uid: str, error: ApiError) -> bool:
        """Return whether the eviction was refused for too long.

        An outage is no refusal: no order would reach the pod's node either.
        """
        if error.status in _OUTAGES:
            return False
        now = asyncio.get_running_loop().time()
        return now - self._refused_since.setdefault(uid, now) >= PATIENCE_SECONDS
