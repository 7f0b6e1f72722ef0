"""Programs whose output shows whether anything of their work was lost, or done twice."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from tests.cluster.api.client import Object
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.following import Following
from tests.e2e.product.reclaiming import completed

COUNTS: Final = 140
ALL: Final = [str(number) for number in range(COUNTS)]
BEGUN: Final = 20
"""After so many counts it is worth saving."""
LARGE: Final = 150
"""Mebibytes in each pod with which tests are faster than the dump."""
_ENOUGH = "/tmp/enough"
_PAUSE = patient(0.1)
"""Between two counts: who ends by itself must not do so before a busy cluster has come to preempting it."""
_COUNT = f"""
import itertools, os, signal, time
if {{mortal}}:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
load = [os.urandom(1 << 20) for _ in range({{mebibytes}})]
for number in {{numbers}}:
    print(number, flush=True)
    if os.path.exists("{_ENOUGH}"):
        break
    time.sleep({_PAUSE})
"""
_COUNT_UNDER_A_NAME = """
import itertools, os, time
me = os.urandom(8).hex()
for number in {numbers}:
    print(me, number, flush=True)
    time.sleep({pause})
"""

Completed = Callable[[Namespace, str], Awaitable[Object]]


def counting(*, mebibytes: int = 0, counts: int | None = COUNTS, mortal: bool = False) -> tuple[str, ...]:
    """A command that counts aloud, ten a second, with so much memory that no store can compress or has seen before.

    Without `counts` it goes on until it is told that it is `enough`. One that is `mortal` ends at SIGTERM, which the
    kernel keeps from the first process of a container that does not ask for it.
    """
    return "python3", "-c", _COUNT.format(mebibytes=mebibytes, numbers=_numbers(counts), mortal=mortal)


def counting_under_a_name(counts: int | None = None) -> tuple[str, ...]:
    """A command that counts aloud, ten a second, after a name that it gives itself when it begins.

    It tells apart what nothing else does, by what only the program's memory knows. Without `counts` it never ends.
    """
    return "python3", "-c", _COUNT_UNDER_A_NAME.format(numbers=_numbers(counts), pause=_PAUSE)


def _numbers(counts: int | None) -> str:
    return "itertools.count()" if counts is None else f"range({counts})"


def by_name(lines: Iterable[str]) -> dict[str, list[int]]:
    """What each has counted, in order."""
    counted: defaultdict[str, list[int]] = defaultdict(list)
    for line in lines:
        name, number = line.split()
        counted[name].append(int(number))
    return counted


async def begun(following: Following, *indices: int, counts: int = BEGUN) -> None:
    """Wait until these have counted for a while."""
    for index in indices:
        await asyncio.wait_for(following.said(index, counts), patient(120))


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
        is_ended = False
        while not is_ended:  # one that is frozen by now counts on later, in this pod or in the next
            await asyncio.wait_for(following.said(index, len(following.lines(index)) + 5), patient(120))
            is_ended = await _end(namespace, following.pods[index][-1])
    await completed(namespace, job)
    await asyncio.wait_for(following.read(), patient(60))
    for index in range(pods):
        lines = following.lines(index)
        assert lines == [str(number) for number in range(len(lines))], f"index {index}"


async def _end(namespace: Namespace, pod: str) -> bool:
    """Let a program end; return whether it was reached, and not frozen."""
    try:
        await namespace.exec(pod, "touch", _ENOUGH)
    except ClusterError as error:
        if "cannot exec in a paused container" in str(error):
            return False
        if "exit code 137" not in str(error):  # the program has seen the file, and touch was ended with its container
            raise
    return True
