"""State machine entry point: handle an event, reconcile to a fixed point, return instructions."""

from __future__ import annotations

from collections.abc import Iterable

from cedana_sched.adapter.contract import Ended, PreemptionCancelled, Report, Starting
from cedana_sched.coordinator.core import orders
from cedana_sched.coordinator.core.book import Book
from cedana_sched.coordinator.core.checkpoints import CheckpointOutcome, Checkpoints
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
from cedana_sched.coordinator.core.instructions import Instruction, Persist
from cedana_sched.coordinator.core.restores import RestoreOutcome, Restores
from cedana_sched.coordinator.core.set_back import SET_BACK_SECONDS, set_back, was_ahead
from cedana_sched.coordinator.core.timing import Timing
from cedana_sched.coordinator.core.turn_context import TurnContext
from cedana_sched.model.orders import ApplyRetention, CheckpointFailed
from cedana_sched.model.records import Checkpoint, HoldStep, Record, Restore, of_namespace

RUNAWAY = 100_000
"""More reconciliations than this from one event are a rule loop, not work."""


class Core:
    """The whole state machine. Not thread-safe; never blocks."""

    def __init__(self, timing: Timing | None = None) -> None:
        self._context = TurnContext(timing or Timing())
        self._checkpoints = Checkpoints(self._context)
        self._holds = Holds(self._context, self._checkpoints)
        self._restores = Restores(self._context)

    @classmethod
    def recover(
        cls, records: Iterable[Record], now: float, timing: Timing | None = None
    ) -> tuple[Core, tuple[Instruction, ...]]:
        """Recover from persisted records; repeats every order and release that may not have arrived."""
        core = cls(timing)
        context = core._context
        context.now = now
        stored = sorted(records, key=lambda record: record.created_at)
        for record in stored:
            context.book.load(record)
        if was_ahead(stored, now):
            set_back(context, now)
        for record in stored:
            core._repeat(context.book.get(record.uid) or record)
        core._draw()
        core._pass_deadlines()
        return core, core._take_instructions()

    @property
    def book(self) -> Book:
        """All records, read-only."""
        return self._context.book

    @property
    def now(self) -> float:
        """The time of the last event (epoch seconds)."""
        return self._context.now

    @property
    def timing(self) -> Timing:
        """The core's own intervals."""
        return self._context.timing

    def records(self) -> tuple[Record, ...]:
        """Return all retained records, checkpoints first."""
        return tuple(self._context.book.records())

    def next_deadline(self) -> float | None:
        """Return when the core needs a `Tick` (epoch seconds); None if no timer is set."""
        return self._context.deadlines.next()

    def handle(self, event: Event, now: float) -> tuple[Instruction, ...]:
        """Handle one event; the first instruction is the `Persist`, if any record changed.

        Deadlines that have passed by `now` are handled before the event, so that late events are late. A `now` slightly
        earlier than the last one is clamped to the last one; one far earlier counts as a clock that was set back.

        Raises:
            IllegalTransitionError: the event contradicts the record. The event has no effect; instructions of passed
                deadlines are returned by the next call, so follow with a `Tick`.
        """
        if self._context.now - now > SET_BACK_SECONDS:
            self._set_back(now)
        self._context.now = max(now, self._context.now)
        self._pass_deadlines()
        self._dispatch(event)
        self._draw()
        self._pass_deadlines()
        return self._take_instructions()

    def _set_back(self, now: float) -> None:
        set_back(self._context, now)
        for record in tuple(self._context.book.records()):
            self._arm(record)

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, Tick):
            return
        if isinstance(event, Reported):
            self._report(event.adapter, event.report)
        elif isinstance(event, HoldPlaced):
            self._holds.placed(event.signal_uid, event.until)
        elif isinstance(event, ReleaseDone):
            self._holds.released(event.signal_uid)
        elif isinstance(event, ReleaseFailed):
            self._holds.release_failed(event.signal_uid, event.why)
        elif isinstance(event, OrderLost):
            self._order_lost(event)
        elif isinstance(event, NodeLost):
            self._checkpoints.node_lost(event.node)
            self._restores.node_lost(event.node)
        elif isinstance(event, NamespaceCorrected):
            self._correct_namespace(event)
        elif isinstance(event, CheckpointOutcome):
            self._look_for_end(event)
            self._checkpoints.answer(event)
        elif isinstance(event, RestoreOutcome):
            self._restores.answer(event)

    def _correct_namespace(self, event: NamespaceCorrected) -> None:
        if (record := self._context.book.get(event.record_uid)) is not None:
            self._context.book.update(of_namespace(record, event.namespace_uid))
            self._context.book.touched[record.uid] = None  # re-evaluates obstacles in that namespace

    def _look_for_end(self, outcome: CheckpointOutcome) -> None:
        checkpoint = self._context.book.checkpoints.get(outcome.checkpoint_uid)
        if checkpoint is not None and isinstance(outcome, CheckpointFailed) and outcome.workload_gone:
            self._restores.nothing_runs(checkpoint.workload.uid)

    def _report(self, adapter: str, report: Report) -> None:
        if isinstance(report, Starting):
            self._restores.starting(adapter, report)
        elif isinstance(report, Ended):
            self._restores.workload_ended(report.workload_uid, report)
            self._checkpoints.workload_ended(report.workload_uid, report.why)
        elif isinstance(report, PreemptionCancelled):
            self._checkpoints.cancel(report.signal_uid, report.why)
        else:
            self._holds.preempted(report.signal)

    def _order_lost(self, lost: OrderLost) -> None:
        order = lost.order
        if isinstance(order, ApplyRetention):
            return
        uid = orders.record_of(order)
        record = self._context.book.get(uid)
        if isinstance(record, Checkpoint):
            current = self._checkpoints.order_of(record)
        elif isinstance(record, Restore):
            current = orders.of_restore(record)
            self._restores.order_lost(record, lost.why)
        else:
            return
        if current is None or type(current) is type(order):
            self._context.lost(uid)
            self._arm(record)

    def _draw(self) -> None:
        """Reconcile every changed record until no rule applies."""
        book = self._context.book
        for _ in range(RUNAWAY):
            if not book.touched:
                return
            uid = next(iter(book.touched))
            del book.touched[uid]
            record = book.get(uid)
            if isinstance(record, Checkpoint):
                self._draw_checkpoint(record)
            elif isinstance(record, Restore):
                self._restores.draw(record)
                self._checkpoints.workload_changed(record.workload.uid)
            elif record is not None:
                self._holds.draw(record)
        raise RuntimeError(f"the rules run in circles around {list(book.touched)[:5]}")

    def _draw_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._checkpoints.draw(checkpoint)
        if checkpoint.is_terminal:
            stopped_by = self._context.book.stopped_by(checkpoint.workload.uid)
            if (
                stopped_by is not None and not stopped_by.kill_pending
            ):  # a doomed workload may be spared until its end is reported
                self._restores.workload_ended(checkpoint.workload.uid)
            hold = self._context.book.holds.get(checkpoint.signal_uid)
            if hold is not None:
                self._holds.draw(hold)
        self._restores.wake(checkpoint)

    def _pass_deadlines(self) -> None:
        for _ in range(RUNAWAY):
            due = self._context.deadlines.pop_due(self._context.now)
            if not due:
                return
            for uid in due:
                record = self._context.book.get(uid)
                if isinstance(record, Checkpoint):
                    self._checkpoints.due(record)
                elif isinstance(record, Restore):
                    self._restores.due(record)
                elif record is not None:
                    self._holds.due(record)
            self._draw()
        raise RuntimeError(f"the deadlines run in circles at {self._context.now}")

    def _repeat(self, record: Record) -> None:
        if isinstance(record, Checkpoint):
            order = self._checkpoints.order_of(record)
            if order is not None:
                self._context.order(record.uid, record.workload.node, order)
        elif isinstance(record, Restore):
            self._restores.repeat(record)
        elif record.step is HoldStep.RELEASING:
            self._holds.release_again(record)

    def _arm(self, record: Record) -> None:
        if isinstance(record, Checkpoint):
            self._checkpoints.arm(record)
        elif isinstance(record, Restore):
            self._restores.arm(record)
        else:
            self._holds.arm(record)

    def _take_instructions(self) -> tuple[Instruction, ...]:
        instructions = tuple(self._context.out)
        self._context.out.clear()
        records, forgotten = self._context.book.take_changes()
        if records or forgotten:
            return (Persist(records, forgotten), *instructions)
        return instructions
