"""Records in flight, for whose end the uninstallation waits."""

from __future__ import annotations

import asyncio

import structlog

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.identity import Identity
from cedana_sched.model.records import Checkpoint, HoldStep, PreemptionHold, Record, RestoreStep

log = structlog.get_logger(__name__)

NAMED = 20
"""Maximum records named in a message; the others are counted."""
_RESTING = {RestoreStep.RUNNING, RestoreStep.FAILED, RestoreStep.ENDED}


class StillInFlightError(CedanaSchedError):
    """Something did not end in time; the release must not be removed yet."""


class RecordsInFlight:
    """Records in flight. `on_records_saved` must receive every change of a record."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._changed = asyncio.Event()

    def current_holds(self) -> list[PreemptionHold]:
        """Return the current holds."""
        return [record for record in self._records.values() if isinstance(record, PreemptionHold)]

    def has_checkpoint_of(self, identity: Identity) -> bool:
        """Whether a checkpoint of this identity is in flight, which may yet commit a snapshot."""
        return any(isinstance(one, Checkpoint) and one.identity == identity for one in self._records.values())

    def on_records_saved(self, records: tuple[Record, ...], forgotten: tuple[Record, ...]) -> None:
        """See `OnRecordsSaved`."""
        for record in (*records, *forgotten):
            self._records.pop(record.uid, None)
            if not is_at_rest(record):
                self._records[record.uid] = record
        self._changed.set()

    async def wait_ended(self, until: float) -> None:
        """Wait until nothing is in flight, and log each change of what is.

        Args:
            until: deadline in seconds of the event loop's clock.

        Raises:
            StillInFlightError: something is still in flight; the message names it.
        """
        logged: list[str] = []
        try:
            async with asyncio.timeout_at(until):
                while self._records:
                    if (now := self._describe_records()) != logged:
                        logged = now
                        log.info("waiting until nothing is under way", left=logged)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            message = f"under way still: {', '.join(self._describe_records())}"
            remedy = "see the messages of these objects; uninstall again when they have ended, or delete their pods"
            raise StillInFlightError(message, remedy=remedy) from None

    def _describe_records(self) -> list[str]:
        names = sorted(map(_describe_record, self._records.values()))
        return names if len(names) <= NAMED else [*names[:NAMED], f"and {len(names) - NAMED} more"]


def is_at_rest(record: Record) -> bool:
    """Whether a record needs no further action; a running workload needs none."""
    match record:
        case Checkpoint():
            return record.is_terminal
        case PreemptionHold():
            return record.step is HoldStep.RELEASED
        case _:
            return record.step in _RESTING


def _describe_record(record: Record) -> str:
    kind, step = type(record).__name__, record.step.value
    if isinstance(record, PreemptionHold):
        held = record.held
        return f"{kind} of {held.kind} {held.namespace}/{held.name}: {step}" if held else f"{kind} {record.uid}: {step}"
    return f"{kind} of pod {record.workload.namespace}/{record.workload.name}: {step}"
