"""How long a saved pod stays frozen while the API server refuses its eviction; after that it runs on."""

from __future__ import annotations

import asyncio
from typing import Final

from cedana_sched.kube.errors import ApiError

PATIENCE_SECONDS: Final = 60.0
_OUTAGES: Final = frozenset({0, 502, 503, 504})
"""Statuses without an answer of the API server; 0: there is none at all."""


class EvictionPatience:
    """The refusals of each pod's eviction; may be lost, and then counts anew."""

    def __init__(self) -> None:
        self._refused_since: dict[str, float] = {}
        """By uid of the pod, in loop time."""

    def is_over(self, uid: str, error: ApiError) -> bool:
        """Record a failed eviction; return whether the pod is to run on, because it was refused for so long.

        An outage is no refusal: nothing could be said to the pod's node either.
        """
        if error.status in _OUTAGES:
            return False
        now = asyncio.get_running_loop().time()
        return now - self._refused_since.setdefault(uid, now) >= PATIENCE_SECONDS

    def forget(self, uid: str) -> None:
        """Drop the state of a pod that was evicted, or runs on."""
        self._refused_since.pop(uid, None)
