"""The holds that an earlier run of the coordinator has left standing."""

from __future__ import annotations

import msgspec

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import PREEMPTION_HOLDS
from cedana_sched.model.records import HoldStep


class _Spec(msgspec.Struct, frozen=True):
    uid: str = ""
    adapter: str = ""


class _Status(msgspec.Struct, frozen=True):
    step: str = HoldStep.HOLDING


class _Hold(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()
    status: _Status = _Status()


async def holds_that_stand(api: Api, adapter: str) -> tuple[str, ...]:
    """Uids of this adapter's signals whose PreemptionHold still waits.

    Raises:
        ApiError: they cannot be read.
    """
    try:
        found, _ = await api.list_all(PREEMPTION_HOLDS, None, into=_Hold)
    except AbsentError:  # the kind is not installed: nothing is held
        return ()
    return tuple(one.spec.uid for one in found if one.spec.adapter == adapter and one.status.step == HoldStep.HOLDING)
