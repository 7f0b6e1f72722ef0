"""Startup check: the engine does not start on a sealed store without the store's keys.

Without the keys the engine would save other namespaces in the clear. In a sealed namespace each dump and each restore
would fail, which loses work, and only a preemption would reveal the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.errors import SealedError, StoreError

log = structlog.get_logger(__name__)

CHECK_SECONDS = 10.0
"""Timeout of the check if the store is unavailable: jobs run without the store too."""
_OTHER_WAYS = "or name another --store; 'cedana-sched keys erase NAMESPACE' gives up what is sealed there, for good"


class _Store(Protocol):
    def require_keys(self, namespaces: Collection[str]) -> None:
        """See `SnapshotStore.require_keys`."""


async def require_keys(store: _Store, namespaces: Collection[str]) -> None:
    """Check that the keys of a sealed store are here. An unavailable store passes: each dump checks its own namespace.

    Raises:
        SealedError: the keys that seal the store are not here.
    """
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await StoreThreads(1).run(store.require_keys, namespaces)
    except SealedError as error:
        raise SealedError(error.message, remedy=f"{error.remedy}; {_OTHER_WAYS}") from error
    except (StoreError, TimeoutError) as error:
        log.warning("whether the store is sealed is not known", error=str(error) or "it does not answer")
