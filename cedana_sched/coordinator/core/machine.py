"""State machine entry point: handle an event, reconcile to a fixed point, return instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, get_args

from cedana_sched.adapter.contract import Ended, Preempted, PreemptionCancelled, Starting
from cedana_sched.coordinator.core.checkpoints import Checkpoints
from cedana_sched.coordinator.core.events import (
    Event,
    HoldPlaced,
    NamespaceCorrected,
    NodeLost,
    OrderLost,
    ReleaseDone,
    ReleaseFailed,
    Reported,
    Tick,
)
from cedana_sched.coordinator.core.holds import Holds
from cedana_sched.coordinator.core.instructions import Instruction, Persist, record_uid_of
from cedana_sched.coordinator.core.losses import clear_loss_of_saved
from cedana_sched.coordinator.core.record_registry import RecordRegistry
from cedana_sched.coordinator.core.restores import Restores
from cedana_sched.coordinator.core.turn import SET_BACK_SECONDS, Timing, Turn, has_future_record
from cedana_sched.model.orders import ApplyRetention, CheckpointFailed, CheckpointOutcome, RestoreOutcome
from cedana_sched.model.records import Checkpoint, PreemptionHold, Record, Restore, with_namespace_uid

RUNAWAY = 100_000
"""More reconciliations than this from one event are a rule loop, not work."""


class Rules(Protocol):
    """The rules of one type of records."""

    def reconcile(self, record: Any, /) -> None: ...

    def handle_timer(self, record: Any, /) -> None: ...

    def repeat_after_recovery(self, record: Any, /) -> None: ...

    def set_next_timer(self, record: Any, /) -> None: ...


class Core:
    """The whole state machine. Not thread-safe; never blocks."""

    def __init__(self, timing: Timing | None = None) -> None:
        self._turn = Turn(timing or Timing())
        self._checkpoints = Checkpoints(self._turn)
        self._holds = Holds(self._turn, self._checkpoints)
        self._restores = Restores(self._turn)
        self._rules: Mapping[type[Record], Rules] = {
            Checkpoint: self._checkpoints,
            PreemptionHold: self._holds,
            Restore: self._restores,
        }
        self._follow_ups: Mapping[type[Record], Callable[[Any], None]] = {
            Checkpoint: self._reconcile_after_checkpoint,
            Restore: self._reconcile_after_restore,
        }
        """What a reconciled record changes for those of other types."""
        self._handlers: Mapping[type, Callable[[Any], None]] = {
            Tick: lambda _: None,
            Reported: lambda event: self._reports[type(event.report)](event.adapter, event.report),
            HoldPlaced: lambda event: self._holds.confirm_placed(event.signal_uid, event.until),
            ReleaseDone: lambda event: self._holds.confirm_released(event.signal_uid),
            ReleaseFailed: lambda event: self._holds.report_failure(event.signal_uid, event.why),
            OrderLost: self._lose_order,
            NodeLost: self._lose_node,
            NamespaceCorrected: self._correct_namespace,
            **dict.fromkeys(get_args(CheckpointOutcome), self._apply_checkpoint_answer),
            **dict.fromkeys(get_args(RestoreOutcome), self._restores.apply_answer),
        }
        self._reports: Mapping[type, Callable[[str, Any], None]] = {
            Starting: self._restores.start,
            Ended: self._on_workload_ended,
            PreemptionCancelled: lambda _, report: self._checkpoints.cancel(report.signal_uid, report.why),
            Preempted: lambda _, report: self._holds.create(report.signal),
        }

    @classmethod
    def recover(
        cls, records: Iterable[Record], now: float, timing: Timing | None = None
    ) -> tuple[Core, tuple[Instruction, ...]]:
        """Recover from persisted records; repeats every order and release that may not have arrived."""
        core = cls(timing)
        turn = core._turn
        turn.now = now
        stored = sorted(records, key=lambda record: record.created_at)
        for record in stored:
            turn.registry.load(record)
        if has_future_record(stored, now):
            turn.adopt_earlier_time(now)
        for record in stored:
            core._rules[type(record)].repeat_after_recovery(turn.registry.get(record.uid) or record)
        core._reconcile()
        core._handle_due_timers()
        return core, core._take_instructions()

    @property
    def registry(self) -> RecordRegistry:
        """All records, read-only."""
        return self._turn.registry

    @property
    def now(self) -> float:
        """The time of the last event (epoch seconds)."""
        return self._turn.now

    @property
    def timing(self) -> Timing:
        """The core's own intervals."""
        return self._turn.timing

    def records(self) -> tuple[Record, ...]:
        """Return all retained records, checkpoints first."""
        return tuple(self._turn.registry.records())

    def next_deadline(self) -> float | None:
        """Return when the core needs a `Tick` (epoch seconds); None if no timer is set."""
        return self._turn.timers.next_due_at()

    def handle(self, event: Event, now: float) -> tuple[Instruction, ...]:
        """Handle one event; the first instruction is the `Persist`, if any record changed.

        Deadlines that have passed by `now` are handled before the event, so that late events are late. A `now` slightly
        earlier than the last one is clamped to the last one; one far earlier counts as a clock that was set back.

        Raises:
            IllegalTransitionError: the event contradicts the record. The event has no effect; instructions of passed
                deadlines are returned by the next call, so follow with a `Tick`.
        """
        if self._turn.now - now > SET_BACK_SECONDS:
            self._turn.adopt_earlier_time(now)
            for record in tuple(self._turn.registry.records()):
                self._rules[type(record)].set_next_timer(record)
        self._turn.now = max(now, self._turn.now)
        self._handle_due_timers()
        self._handlers[type(event)](event)
        self._reconcile()
        self._handle_due_timers()
        return self._take_instructions()

    # -- events that concern several types of records

    def _apply_checkpoint_answer(self, outcome: CheckpointOutcome) -> None:
        checkpoint = self._turn.registry.checkpoints.get(outcome.checkpoint_uid)
        if checkpoint is not None and isinstance(outcome, CheckpointFailed) and outcome.workload_gone:
            self._restores.close_if_given_up(checkpoint.workload.uid)
        self._checkpoints.apply_answer(outcome)

    def _on_workload_ended(self, _: str, ended: Ended) -> None:
        self._restores.on_workload_ended(ended.workload_uid, ended)
        self._checkpoints.on_workload_ended(ended.workload_uid, ended.why, lost_with_node=ended.lost_with_node)

    def _lose_node(self, event: NodeLost) -> None:
        self._checkpoints.lose_node(event)
        if not event.keeps_restores:
            self._restores.lose_node(event)

    def _lose_order(self, lost: OrderLost) -> None:
        registry, uid = self._turn.registry, record_uid_of(lost.order)
        if isinstance(lost.order, ApplyRetention):
            return
        if (checkpoint := registry.checkpoints.get(uid)) is not None:
            self._checkpoints.lose_order(checkpoint, lost.order)
        elif (restore := registry.restores.get(uid)) is not None:
            self._restores.lose_order(restore, lost.order, lost.why)

    def _correct_namespace(self, event: NamespaceCorrected) -> None:
        registry = self._turn.registry
        if (record := registry.get(event.record_uid)) is not None:
            registry.update(with_namespace_uid(record, event.namespace_uid))
            registry.mark_for_reconciliation(record.uid)  # re-evaluates obstacles in that namespace

    # -- reconciliation

    def _reconcile(self) -> None:
        """Reconcile every changed record until no rule applies."""
        registry = self._turn.registry
        for _ in range(RUNAWAY):
            if not registry.touched:
                return
            uid = next(iter(registry.touched))
            del registry.touched[uid]
            record = registry.get(uid)
            if record is not None:
                self._rules[type(record)].reconcile(record)
                if (follow := self._follow_ups.get(type(record))) is not None:
                    follow(record)
        raise RuntimeError(f"the rules run in circles around {list(registry.touched)[:5]}")

    def _reconcile_after_checkpoint(self, checkpoint: Checkpoint) -> None:
        if checkpoint.is_terminal:
            stopped_by = self._turn.registry.stopping_checkpoint_of(checkpoint.workload.uid)
            if stopped_by is not None:
                clear_loss_of_saved(self._turn.registry, checkpoint.workload.uid)
            # a pending kill may be cancelled until the workload's end is reported
            if stopped_by is not None and not stopped_by.kill_pending:
                self._restores.on_workload_ended(checkpoint.workload.uid)
            hold = self._turn.registry.holds.get(checkpoint.signal_uid)
            if hold is not None:
                self._holds.reconcile(hold)
        self._restores.lookups.recheck_waiting(checkpoint)

    def _reconcile_after_restore(self, restore: Restore) -> None:
        self._checkpoints.starts.start_waiting(restore.workload.uid)

    def _handle_due_timers(self) -> None:
        for _ in range(RUNAWAY):
            due = self._turn.timers.pop_due(self._turn.now)
            if not due:
                return
            for uid in due:
                record = self._turn.registry.get(uid)
                if record is not None:
                    self._rules[type(record)].handle_timer(record)
            self._reconcile()
        raise RuntimeError(f"the deadlines run in circles at {self._turn.now}")

    def _take_instructions(self) -> tuple[Instruction, ...]:
        instructions = tuple(self._turn.out)
        self._turn.out.clear()
        records, forgotten = self._turn.registry.take_changes()
        if records or forgotten:
            return (Persist(records, forgotten), *instructions)
        return instructions
