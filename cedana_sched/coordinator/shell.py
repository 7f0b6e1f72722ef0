"""Asyncio shell around the core.

One event queue, one consumer. The records of a turn are persisted before any other instruction of the turn is executed;
orders, holds and releases then run as owned, named tasks whose results are posted as events.

    adapters ──┐                        ┌─► journal (first)
    agents  ───┼─► queue ─► core.handle ┼─► agents, adapters (tasks) ─► queue
    clock   ───┘                        └─► listener
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import structlog

from cedana_sched.adapter.contract import Adapter, Report
from cedana_sched.coordinator.core import Core, Event, Instruction, Persist, PublishEvent, Reported, Tick, Timing
from cedana_sched.coordinator.effects import Effect, Effects
from cedana_sched.coordinator.ports import Agents, Clock, EventListener, Journal
from cedana_sched.coordinator.tasks import Tasks
from cedana_sched.model.errors import CedanaSchedError, IllegalTransitionError, RetryableError
from cedana_sched.model.records import Record
from cedana_sched.retrying import AWAITED, WATCHES, Backoff

log = structlog.get_logger(__name__)

STOP_SECONDS = 10.0
"""How long `stop` waits for cancelled tasks to end before it logs those that have not."""
EVENTS_A_TURN = 512
"""Batch limit: a burst of answers is persisted in one write, and deadlines are still checked between batches."""
MOST_WAITING = 100_000
"""Limit of events queued while the journal cannot be written, about 1 KiB each."""


class TooManyWaitingError(CedanaSchedError):
    """The event queue is full. A coordinator that recovers from the journal receives all of the events again."""


class Coordinator:
    """Runs one core. As an async context manager, serves after entry, and has ended every task after exit."""

    def __init__(
        self,
        *,
        journal: Journal,
        adapters: Mapping[str, Adapter],
        agents: Agents,
        clock: Clock,
        listener: EventListener,
        timing: Timing | None = None,
        amend_report: Callable[[Report], Report] = lambda report: report,
    ) -> None:
        self._amend_report = amend_report
        """Completes reports of all adapters alike."""
        self._journal = journal
        self._adapters = adapters
        self._agents = agents
        self._clock = clock
        self._listener = listener
        self._timing = timing
        self._core = Core(timing)
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._serving = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._tasks: Tasks | None = None
        self._alarm_at: float | None = None

    def post(self, event: Event) -> None:
        """Enqueue an event that does not come through a port, for example `NodeLost`."""
        self._queue.put_nowait(event)

    async def wait_ended(self) -> None:
        """Wait until the coordinator ends by itself, which happens only on an error.

        Raises:
            ExceptionGroup: see `run`.
        """
        if self._main is not None:
            await asyncio.shield(self._main)

    async def __aenter__(self) -> Self:
        self._main = asyncio.create_task(self.run(), name="coordinator")
        serving = asyncio.create_task(self._serving.wait(), name="coordinator serving")
        try:
            await asyncio.wait({self._main, serving}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            serving.cancel()
        if self._main.done():
            await self._main  # re-raises the failure
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop intake, cancel every task, wait at most `STOP_SECONDS`; unfinished work is in the records.

        Raises:
            ExceptionGroup: the coordinator had already failed with these errors.
        """
        main, self._main = self._main, None
        if main is None:
            return
        main.cancel()
        done, _ = await asyncio.wait({main}, timeout=STOP_SECONDS)
        if not done:
            log.warning("coordinator does not stop", tasks=self._tasks.names() if self._tasks else [])
        elif not main.cancelled() and (error := main.exception()) is not None:
            raise error

    async def run(self) -> None:
        """Recover from the journal, then serve until cancelled.

        Raises:
            ExceptionGroup: the journal failed permanently or for too long, or a defect; recovery resumes from the
                records.
        """
        records = await self._journal.load()
        self._core, instructions = Core.recover(records, self._clock.now(), self._timing)
        log.info("coordinator recovered", records=len(records), instructions=len(instructions))
        async with asyncio.TaskGroup() as group:
            self._tasks = Tasks(group)
            effects = Effects(self._tasks, self._core.registry, self._agents, self._adapters, self._clock, self.post)
            await self._carry_out(instructions, effects)
            for name, adapter in self._adapters.items():
                self._tasks.start(f"reports of {name}", lambda n=name, a=adapter: self._reports(n, a))  # type: ignore[misc]
            self._tasks.start("changes of nodes", self._node_changes)
            self._serving.set()
            while True:
                await self._run_turn(await self._queue.get(), effects)

    async def _run_turn(self, event: Event, effects: Effects) -> None:
        """Run one turn: handle this event and those queued behind it, persist once, then execute the instructions."""
        instructions = list(self._handle(event))
        for _ in range(min(self._queue.qsize(), EVENTS_A_TURN - 1)):
            instructions += self._handle(self._queue.get_nowait())
        await self._carry_out(instructions, effects)

    def _handle(self, event: Event) -> tuple[Instruction, ...]:
        try:
            return self._core.handle(event, self._clock.now())
        except IllegalTransitionError as error:
            log.exception("event refused", refused=repr(event)[:500], history=error.evidence)
            return self._core.handle(Tick(), self._clock.now())

    async def _carry_out(self, instructions: Iterable[Instruction], effects: Effects) -> None:
        others: list[PublishEvent | Effect] = []
        records: dict[str, Record] = {}
        forgotten: dict[str, Record] = {}
        for instruction in instructions:
            if not isinstance(instruction, Persist):
                others.append(instruction)
                continue
            for record in instruction.forget:
                records.pop(record.uid, None)
            records |= {record.uid: record for record in instruction.records}
            forgotten = {uid: one for uid, one in forgotten.items() if uid not in records}
            forgotten |= {record.uid: record for record in instruction.forget}
        if records or forgotten:
            await self._save(Persist(tuple(records.values()), tuple(forgotten.values())))
        for other in others:
            if isinstance(other, PublishEvent):
                self._publish_event(other)
            else:
                effects.run(other)
        self._set_alarm()

    async def _save(self, persist: Persist) -> None:
        backoff = Backoff(AWAITED)
        while True:
            try:
                await self._journal.save(persist.records, persist.forget)
            except RetryableError as error:
                pause = backoff.next_pause()
                log.warning("journal cannot be written, trying again", error=error.message, pause_seconds=pause)
                if self._queue.qsize() > MOST_WAITING:
                    message = f"more than {MOST_WAITING} events wait for the journal: {error.message}"
                    raise TooManyWaitingError(message, remedy="see why it cannot be written") from error
                await self._clock.wait_until(self._clock.now() + pause)
            else:
                return

    def _publish_event(self, event: PublishEvent) -> None:
        log.info(event.text, kind=event.kind, severity=str(event.severity), preemption=event.signal_uid)
        try:
            self._listener.on_event(event)
        except Exception:  # a listener must not fail the coordinator
            log.exception("announcement failed", kind=event.kind)

    def _set_alarm(self) -> None:
        """Schedule a `Tick` at the core's next deadline."""
        at = self._core.next_deadline()
        if at == self._alarm_at or self._tasks is None:
            return
        self._tasks.cancel("alarm")
        self._alarm_at = at
        if at is not None:
            self._tasks.start("alarm", lambda: self._post_tick_at(at))

    async def _post_tick_at(self, at: float) -> None:
        await self._clock.wait_until(at)
        self._alarm_at = None
        self.post(Tick())

    async def _reports(self, name: str, adapter: Adapter) -> None:
        """Consume an adapter's reports forever; after a disconnect the adapter repeats pending ones."""
        backoff = Backoff(WATCHES)
        while True:
            try:
                async for report in adapter.reports():
                    self.post(Reported(name, self._amend_report(report)))
                    backoff.reset()
            except CedanaSchedError as error:
                log.warning("reports broke off", adapter=name, error=str(error))
            except Exception:  # adapters may be third-party: a defect must not stop the others
                log.exception("reports failed", adapter=name)
            else:
                log.warning("reports ended unexpectedly", adapter=name)
            await self._clock.wait_until(self._clock.now() + backoff.next_pause())

    async def _node_changes(self) -> None:
        """Consume node changes forever."""
        backoff = Backoff(WATCHES)
        while True:
            try:
                async for change in self._agents.lost_nodes():
                    self.post(change)
                    backoff.reset()
            except RetryableError as error:
                log.warning("changes of nodes broke off", error=str(error))
            else:
                log.warning("changes of nodes ended unexpectedly")
            await self._clock.wait_until(self._clock.now() + backoff.next_pause())
