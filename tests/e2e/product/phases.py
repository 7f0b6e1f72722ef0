"""How far a preemption is, as our objects say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep, HoldStep, RestoreStep
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace

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

PHASES = {
    "held": ("PreemptionHold", HoldStep.HOLDING),
    "freezing": ("Checkpoint", CheckpointStep.FREEZING),
    "dumping": ("Checkpoint", CheckpointStep.DUMPING),
    "committed": ("Checkpoint", CheckpointStep.COMMITTED),
    "released": ("PreemptionHold", HoldStep.RELEASED),
    "staging": ("Restore", RestoreStep.STAGING),
    "restoring": ("Restore", RestoreStep.RESTORING),
}
"""Those in which parts die: what `reached` waits for."""


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


async def released_in_time(namespace: Namespace, *, count: int = 1) -> list[Object]:
    """Wait until all holds, at least so many, are released; none may have lasted longer than its deadline."""
    holds = await all_at(namespace, "PreemptionHold", HoldStep.RELEASED, count=count)
    for hold in holds:
        released, deadline = (datetime.fromisoformat(hold["status"][word]) for word in ("releaseTime", "deadline"))
        assert released <= deadline
    return holds


def _all(holds: Callable[[Object], bool], count: int) -> Callable[[list[Object]], bool]:
    return lambda bodies: len(bodies) >= count and all(map(holds, bodies))


def _step(body: Object) -> str:
    step: str = body.get("status", {}).get("step", "")
    return step
