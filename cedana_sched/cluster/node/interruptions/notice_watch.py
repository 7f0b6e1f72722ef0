"""One kind of notice of a provider, and how it is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec

from cedana_sched.model.objects.node_interruption import NodeInterruption

Now = Callable[[], datetime]


class NoticeWatch(msgspec.Struct, frozen=True):
    """`read` returns the current notice, None if there is none, and raises MetadataError; it may wait for a change.

    `poll_seconds` is the pause between two reads; 0 where `read` waits.
    """

    name: str
    read: Callable[[], Awaitable[NodeInterruption | None]]
    poll_seconds: float
