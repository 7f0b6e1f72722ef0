"""Holds from before a coordinator restart: those still holding, and the victims of the released ones."""

from __future__ import annotations

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.own_kinds.cached_hold import EarlierHold
from cedana_sched.kube.resources import PREEMPTION_HOLDS
from cedana_sched.model.records import HoldStep


async def unreleased_signal_uids(api: Api, adapter: str) -> tuple[str, ...]:
    """Return the uids of this adapter's signals whose PreemptionHold is still holding.

    Raises:
        ApiError: they cannot be read.
    """
    return tuple(
        one.spec.uid for one in await _list_holds_of_adapter(api, adapter) if one.status.step == HoldStep.HOLDING
    )


async def released_victims_by_signal(api: Api, adapter: str) -> dict[str, frozenset[str]]:
    """Return the victims' pod uids of this adapter's released PreemptionHolds, by uid of the signal.

    Raises:
        ApiError: they cannot be read.
    """
    over = (one for one in await _list_holds_of_adapter(api, adapter) if one.status.step != HoldStep.HOLDING)
    return {one.spec.uid: frozenset(victim.pod_uid for victim in one.status.victims) for one in over}


async def _list_holds_of_adapter(api: Api, adapter: str) -> list[EarlierHold]:
    try:
        found, _ = await api.list_all(PREEMPTION_HOLDS, None, into=EarlierHold)
    except AbsentError:  # the kind is not installed: nothing is held
        return []
    return [one for one in found if one.spec.adapter == adapter]
