"""What Kueue's adapter reads after a restart of the holds of an earlier coordinator, as that one has written them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.cluster.coordinator.record_objects import to_object
from cedana_sched.kube.errors import AbsentError
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep, PreemptionHold
from cedana_sched_kueue.holds_before_restart import released_victims_by_signal, unreleased_signal_uids

HELD = PreemptionHold(
    uid="job-1@2026-11-21T13:00:00Z", adapter="kueue", preemptor=None, reason="InClusterQueue", step=HoldStep.HOLDING,
    created_at=0.0, deadline=600.0, checkpoints=("c-1",), namespace="lab",
)  # fmt: skip
RELEASED = replace(
    HELD, uid="job-2@2026-11-21T13:00:00Z", step=HoldStep.RELEASED, released_at=9.0,
    verdicts={"pod-1": Verdict.COMMITTED, "pod-2": Verdict.EVICT},
)  # fmt: skip


class Api:
    def __init__(self, *records: PreemptionHold, error: Exception | None = None) -> None:
        self._bodies = [to_object(record, "cedana-system") for record in records]
        self._error = error

    async def list_all(self, *_: object, into: type) -> tuple[list[Any], str]:
        if self._error is not None:
            raise self._error
        return [msgspec.convert(body, into) for body in self._bodies], "1"


@pytest.mark.parametrize("step", [HoldStep.RELEASING, HoldStep.RELEASED])
async def test_victims_of_holds_that_are_over_are_read(step: HoldStep) -> None:
    api: Any = Api(HELD, replace(RELEASED, step=step), replace(RELEASED, uid="q", adapter="volcano"))
    assert await released_victims_by_signal(api, "kueue") == {RELEASED.uid: frozenset({"pod-1", "pod-2"})}


async def test_holds_that_stand_are_read() -> None:
    api: Any = Api(HELD, RELEASED)
    assert await unreleased_signal_uids(api, "kueue") == (HELD.uid,)


async def test_where_the_kind_is_not_installed_nothing_is_held() -> None:
    api: Any = Api(error=AbsentError("no such kind", status=404))
    assert await released_victims_by_signal(api, "kueue") == {}
