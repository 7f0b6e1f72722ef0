"""How far a preemption is, as our objects say; and a Job that is large enough for tests to be faster than its dump."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep, HoldStep, RestoreStep
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.following import Following

COUNTS = 150
_COUNT = """
import itertools, os, time
load = [os.urandom(1 << 20) for _ in range({mebibytes})]
for number in {numbers}:
    print(number, flush=True)
    if os.path.exists('{enough}'):
        break
    time.sleep(0.1)
"""
_ENOUGH = "/tmp/enough"
_ORDER: dict[str, Sequence[str]] = {
    "PreemptionHold": (HoldStep.HOLDING, HoldStep.RELEASING, HoldStep.RELEASED),
    "Checkpoint": (
        CheckpointStep.WAITING,
        CheckpointStep.FREEZING,
        CheckpointStep.FROZEN,
        CheckpointStep.DUMPING,
        CheckpointStep.COMMITTED,
        CheckpointStep.KILLING,
        CheckpointStep.READY,
    ),
    "Restore": (RestoreStep.WAITING, RestoreStep.STAGING, RestoreStep.RESTORING, RestoreStep.RUNNING),
}


def counting(*, mebibytes: int = 150, counts: int | None = COUNTS) -> tuple[str, ...]:
    """A command that counts aloud, ten a second, with so much memory that no store can compress or has seen before.

    Without `counts` it goes on until it is told that it is `enough`.
    """
    numbers = "itertools.count()" if counts is None else f"range({counts})"
    return "python3", "-c", _COUNT.format(mebibytes=mebibytes, numbers=numbers, enough=_ENOUGH)


async def enough(namespace: Namespace, following: Following, pods: int) -> None:
    """Wait until each index counts on, and tell it that it has counted enough."""
    for index in range(pods):
        await asyncio.wait_for(following.said(index, len(following.lines(index)) + 5), 120)
        await namespace.exec(following.pods[index][-1], "touch", _ENOUGH)


def all_counts(counts: int = COUNTS) -> list[str]:
    """What it says when nothing is lost and nothing done twice."""
    return [str(number) for number in range(counts)]


async def reached(namespace: Namespace, kind: str, step: str, *, within: float = 120) -> str:
    """Wait until an object of this kind is at this step, or past it; which one that is."""
    order = _ORDER[kind]
    further = set(order[order.index(step) :])
    found = await wait_for_all(
        namespace.api,
        API_VERSION,
        kind,
        lambda bodies: any(_step(body) in further for body in bodies),
        namespace=namespace.name,
        within=within,
    )
    return max((_step(body) for body in found if _step(body) in further), key=order.index)


async def all_at(namespace: Namespace, kind: str, *steps: str, count: int = 1, within: float = 120) -> list[Object]:
    """Wait until all objects of this kind, at least so many, are at one of these steps."""
    return await wait_for_all(
        namespace.api,
        API_VERSION,
        kind,
        _all(lambda body: _step(body) in steps, count),
        namespace=namespace.name,
        within=within,
    )


def _all(holds: Callable[[Object], bool], count: int) -> Callable[[list[Object]], bool]:
    return lambda bodies: len(bodies) >= count and all(map(holds, bodies))


def _step(body: Object) -> str:
    step: str = body.get("status", {}).get("step", "")
    return step
