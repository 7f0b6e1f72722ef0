"""Waiting for readable descriptors: pidfds, inotify."""

from __future__ import annotations

import asyncio


async def wait_any_readable(*descriptors: int) -> int:
    """Wait until a descriptor is readable, and return the first such one. One task per descriptor may wait."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[int] = loop.create_future()

    def ready(descriptor: int) -> None:
        if not first.done():
            first.set_result(descriptor)

    for descriptor in descriptors:
        loop.add_reader(descriptor, ready, descriptor)
    try:
        return await first
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
