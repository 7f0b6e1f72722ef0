"""A program whose output shows whether anything of its work was lost, or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.following import Following
from tests.e2e.product.reclaiming import completed

COUNTS: Final = 140
ALL: Final = [str(number) for number in range(COUNTS)]
BEGUN: Final = 20
"""After so many counts it is worth saving."""
LARGE: Final = 150
"""Mebibytes in each pod with which tests are faster than the dump."""
_ENOUGH = "/tmp/enough"
_COUNT = f"""
import itertools, os, time
load = [os.urandom(1 << 20) for _ in range({{mebibytes}})]
for number in {{numbers}}:
    print(number, flush=True)
    if os.path.exists("{_ENOUGH}"):
        break
    time.sleep(0.1)
"""

Completed = Callable[[Namespace, str], Awaitable[Object]]


def counting(*, mebibytes: int = 0, counts: int | None = COUNTS) -> tuple[str, ...]:
    """A command that counts aloud, ten a second, with so much memory that no store can compress or has seen before.

    Without `counts` it goes on until it is told that it is `enough`.
    """
    numbers = "itertools.count()" if counts is None else f"range({counts})"
    return "python3", "-c", _COUNT.format(mebibytes=mebibytes, numbers=numbers)


async def begun(following: Following, *indices: int, counts: int = BEGUN) -> None:
    """Wait until these have counted for a while."""
    for index in indices:
        await asyncio.wait_for(following.said(index, counts), 120)


async def enough(
    namespace: Namespace, following: Following, job: str, pods: int, *, completed: Completed = completed
) -> None:
    """Wait until each index counts on, and let it end; it must have said each number once.

    Args:
        namespace: where they run.
        following: what they say.
        job: its name.
        pods: how many they are.
        completed: waits until the job is complete.
    """
    for index in range(pods):
        await asyncio.wait_for(following.said(index, len(following.lines(index)) + 5), 120)
        await namespace.exec(following.pods[index][-1], "touch", _ENOUGH)
    await completed(namespace, job)
    await asyncio.wait_for(following.read(), 60)
    for index in range(pods):
        lines = following.lines(index)
        assert lines == [str(number) for number in range(len(lines))], f"index {index}"
