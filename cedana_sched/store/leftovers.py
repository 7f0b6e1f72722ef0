"""Whether a collection would find anything to do in a namespace, by names and dates alone: no object is read.

So whoever has the keys of the whole bucket, and none that opens what is sealed, can say whose turn it is, and nothing
that somebody has written into the store is ever parsed there. It costs five small requests at most.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.garbage import GRACE_SECONDS

SECOND_RUN_SECONDS: Final = GRACE_SECONDS + 60.0
"""A first run condemns packs, and one that comes after their grace period, by the store's clock, removes them."""
IDLE_SECONDS: Final = 86_400.0
"""From one collection to the next of a namespace of which nothing says that there is garbage."""


class Leftovers(msgspec.Struct, frozen=True):
    """What lies in a namespace; dates by the store's clock, seconds since the epoch.

    Attributes:
        is_there: there is something that collections look at.
        condemned: since when a pack is condemned, one of them; None: none is.
        collected: when a collection has begun, ended or failed last; None: not since the namespace was empty.
    """

    is_there: bool
    condemned: float | None = None
    collected: float | None = None


def look_for_leftovers(backend: Backend, namespace: str) -> Leftovers:
    """Look.

    Raises:
        StoreError: the store cannot be asked.
    """
    folders = (layout.packs_folder, layout.pages_folder, layout.intents_folder)
    if not any(next(iter(backend.list(folder(namespace))), None) for folder in folders):
        return Leftovers(is_there=False)
    marker = next(iter(backend.list(layout.condemned_folder(namespace))), None)
    collector = backend.stat(layout.collector_key(namespace))
    return Leftovers(
        is_there=True,
        condemned=marker.modified if marker is not None else None,
        collected=collector.modified if collector is not None else None,
    )


def seconds_until_due(found: Leftovers, now: float) -> float:
    """Until the namespace should be collected, by whoever can; 0: now. `now` is by the store's clock.

    What has stayed condemned for a day, something keeps: collections of every quarter of an hour do not change that.
    """
    if not found.is_there:
        return IDLE_SECONDS
    if found.collected is None:
        return 0.0
    is_expected = found.condemned is not None and abs(now - found.condemned) < IDLE_SECONDS
    pause = SECOND_RUN_SECONDS if is_expected else IDLE_SECONDS
    return min(pause, max(0.0, found.collected + pause - now))
