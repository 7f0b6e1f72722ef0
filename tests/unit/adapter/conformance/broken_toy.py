"""Toy's adapter with one thing wrong each: what they have in common."""

# mypy: allow-subclassing-any

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec

from cedana_sched.adapter.contract import Preempted, Report
from cedana_sched.model.preemption import Signal, Victim
from tests.unit.adapter.conformance import toy_page

toy = toy_page.modules()
ToyAdapter: Any = toy["toy_adapter"].ToyAdapter
ToyStage: Any = toy["toy_stage"].ToyStage
ToyDownError: Any = toy["toy_scheduler"].ToyDownError
changed = msgspec.structs.replace


class Broken(ToyAdapter):
    """`caught_by`: names of tests, without `test_`; `says`: what they say, as a regular expression."""

    caught_by: ClassVar[tuple[str, ...]] = ()
    says: ClassVar[str]
    stage: ClassVar[Any] = ToyStage


class ChangedSignals(Broken):
    """Tells what it should, changed."""

    def changed(self, signal: Signal) -> Signal:
        raise NotImplementedError

    async def reports(self) -> AsyncIterator[Report]:
        async for report in super().reports():
            yield Preempted(self.changed(report.signal)) if isinstance(report, Preempted) else report


class ChangedVictims(ChangedSignals):
    """Tells what it should, of victims that are changed."""

    def changed(self, signal: Signal) -> Signal:
        return changed(signal, victims=tuple(map(self.victim, signal.victims)))

    def victim(self, victim: Victim) -> Victim:
        raise NotImplementedError
