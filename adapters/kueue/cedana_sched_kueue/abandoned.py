"""The holds of an earlier run of the coordinator: those that it has left standing, and whom the others were about."""

from __future__ import annotations

import msgspec

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import PREEMPTION_HOLDS
from cedana_sched.model.objects.field_names import api_name
from cedana_sched.model.records import HoldStep


class _Spec(msgspec.Struct, frozen=True):
    uid: str = ""
    adapter: str = ""


class _Victim(msgspec.Struct, frozen=True, rename=api_name):
    pod_uid: str = ""


class _Status(msgspec.Struct, frozen=True):
    step: str = HoldStep.HOLDING
    victims: tuple[_Victim, ...] = ()


class _Hold(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()
    status: _Status = _Status()


async def holds_that_stand(api: Api, adapter: str) -> tuple[str, ...]:
    """Uids of this adapter's signals whose PreemptionHold still waits.

    Raises:
        ApiError: they cannot be read.
    """
    return tuple(one.spec.uid for one in await _holds_of(api, adapter) if one.status.step == HoldStep.HOLDING)


async def victims_let_go(api: Api, adapter: str) -> dict[str, frozenset[str]]:
    """Of this adapter's signals whose PreemptionHold waits no more: the uids of the pods that they were told of.

    Raises:
        ApiError: they cannot be read.
    """
    over = (one for one in await _holds_of(api, adapter) if one.status.step != HoldStep.HOLDING)
    return {one.spec.uid: frozenset(victim.pod_uid for victim in one.status.victims) for one in over}


async def _holds_of(api: Api, adapter: str) -> list[_Hold]:
    try:
        found, _ = await api.list_all(PREEMPTION_HOLDS, None, into=_Hold)
    except AbsentError:  # the kind is not installed: nothing is held
        return []
    return [one for one in found if one.spec.adapter == adapter]
