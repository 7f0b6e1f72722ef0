"""Holds from before a coordinator restart: those still holding, and the victims of the released ones."""

from __future__ import annotations

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.own_kinds.preemption_hold import PastHold
from cedana_sched.kube.resources import PREEMPTION_HOLDS
from cedana_sched.model.records import HoldStep


async def holds_that_stand(api: Api, adapter: str) -> tuple[str, ...]:
    """Return the uids of this adapter's signals whose PreemptionHold is still holding.

    Raises:
        ApiError: they cannot be read.
    """
    return tuple(one.spec.uid for one in await _holds_of(api, adapter) if one.status.step == HoldStep.HOLDING)


async def victims_let_go(api: Api, adapter: str) -> dict[str, frozenset[str]]:
    """Return the victims' pod uids of this adapter's released PreemptionHolds, by uid of the signal.

    Raises:
        ApiError: they cannot be read.
    """
    over = (one for one in await _holds_of(api, adapter) if one.status.step != HoldStep.HOLDING)
    return {one.spec.uid: frozenset(victim.pod_uid for victim in one.status.victims) for one in over}


async def _holds_of(api: Api, adapter: str) -> list[PastHold]:
    try:
        found, _ = await api.list_all(PREEMPTION_HOLDS, None, into=PastHold)
    except AbsentError:  # the kind is not installed: nothing is held
        return []
    return [one for one in found if one.spec.adapter == adapter]
