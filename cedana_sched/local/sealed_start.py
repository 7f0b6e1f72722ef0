"""An engine does not start on a sealed store without its keys.

Without them it would save other namespaces in the clear. In a sealed one each dump and each return would fail, which
costs work, and only a preemption would show it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model.errors import SealedError, StoreError

log = structlog.get_logger(__name__)

ASKING_SECONDS = 10.0
"""For a store that is away: jobs run without it as well."""
_OTHER_WAYS = "or name another --store; 'cedana-sched keys erase NAMESPACE' gives up what is sealed there, for good"


class _Store(Protocol):
    def require_keys(self, namespaces: Collection[str]) -> None:
        """See `SnapshotStore.require_keys`."""


async def require_keys(store: _Store, namespaces: Collection[str]) -> None:
    """Ask the store. One that does not answer is passed over: a dump asks it again for its own namespace.

    Raises:
        SealedError: the keys that seal it are not here.
    """
    try:
        async with asyncio.timeout(ASKING_SECONDS):
            await StoreThreads(1).run(store.require_keys, namespaces)
    except SealedError as error:
        raise SealedError(error.message, remedy=f"{error.remedy}; {_OTHER_WAYS}") from error
    except (StoreError, TimeoutError) as error:
        log.warning("whether the store is sealed is not known", why=str(error) or "it does not answer")
