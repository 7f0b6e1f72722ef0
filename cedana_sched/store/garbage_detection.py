"""Detection of garbage in a namespace by names and dates alone: no object is read.

So a component with the bucket's keys, but without the keys of sealed snapshots, can assign turns, and never parses what
tenants write into the store. Costs at most five small requests.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.garbage import GRACE_SECONDS

SECOND_RUN_SECONDS: Final = GRACE_SECONDS + 60.0
"""Pause before the second run: the first condemns packs; one after the grace period, by the store's clock, deletes
them."""
IDLE_SECONDS: Final = 86_400.0
"""Pause between collections of a namespace without signs of garbage."""


class Leftovers(msgspec.Struct, frozen=True):
    """Contents of a namespace; dates by the store's clock, in epoch seconds.

    Attributes:
        is_there: whether there is anything to collect.
        condemned: since when one pack is condemned; None: none is.
        collected: when the last collection began, ended or failed; None: none since the namespace was empty.
    """

    is_there: bool
    condemned: float | None = None
    collected: float | None = None


def look_for_leftovers(backend: Backend, namespace: str) -> Leftovers:
    """Inspect a namespace.

    Raises:
        StoreError: the store failed.
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
    """Return the seconds until the namespace should be collected; 0: now. `now` is the store's time.

    A pack condemned for more than a day is retained for some reason: a collection every quarter of an hour does not
    change that.
    """
    if not found.is_there:
        return IDLE_SECONDS
    if found.collected is None:
        return 0.0
    is_expected = found.condemned is not None and abs(now - found.condemned) < IDLE_SECONDS
    pause = SECOND_RUN_SECONDS if is_expected else IDLE_SECONDS
    return min(pause, max(0.0, found.collected + pause - now))
