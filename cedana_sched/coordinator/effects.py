"""What the shell does on the core's behalf, each as a named task: give an order, place a hold, release one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from msgspec.structs import replace

from cedana_sched.adapter.contract import Adapter, HoldsEvictions
from cedana_sched.coordinator.core import (
    Event,
    HoldPlaced,
    OrderLost,
    PlaceHold,
    ReleaseDone,
    ReleaseFailed,
    ReleaseHold,
    Send,
)
from cedana_sched.coordinator.core.book import Book
from cedana_sched.coordinator.core.orders import record_of
from cedana_sched.coordinator.ports import Agents, Clock
from cedana_sched.coordinator.tasks import Tasks, pauses
from cedana_sched.model.errors import CedanaSchedError, RetryableError
from cedana_sched.model.orders import (
    ApplyRetention,
    DiscardCancelled,
    Dump,
    FindSnapshot,
    Order,
    Progress,
    RemoveSnapshot,
    StageProgress,
)
from cedana_sched.model.preemption import Release, Signal
from cedana_sched.model.records import Checkpoint, HoldStep

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0


Effect = Send | PlaceHold | ReleaseHold


def is_same(given: Order, order: Order) -> bool:
    """Whether the second is the first one repeated: less time is left for a dump, or for an upgrade, each time.

    Its namespace may have been corrected, which the agent reads elsewhere.
    """
    return _lasting(given) == _lasting(order)


def _lasting(order: Order) -> Order:
    if isinstance(order, FindSnapshot):
        return replace(order, newer_seconds=0.0)
    if isinstance(order, ApplyRetention | RemoveSnapshot | DiscardCancelled):
        return order
    if isinstance(order, Dump):
        order = replace(order, timeout_seconds=0.0)
    return replace(order, workload=replace(order.workload, namespace_uid=""))


class Effects:
    """Carries out `Send`, `PlaceHold` and `ReleaseHold`; results come back through `post`."""

    def __init__(
        self,
        tasks: Tasks,
        book: Book,
        agents: Agents,
        adapters: Mapping[str, Adapter],
        clock: Clock,
        post: Callable[[Event], None],
    ) -> None:
        self._tasks = tasks
        self._book = book
        self._agents = agents
        self._adapters = adapters
        self._clock = clock
        self._post = post
        self._under_way: dict[str, Order] = {}
        """Orders without an answer, by the names of their tasks."""

    def run(self, effect: Effect) -> None:
        """Start it; an errand that is still under way is not started twice."""
        if isinstance(effect, Send):
            self._send(effect.node, effect.order)
            return
        adapter = self._adapters.get(effect.adapter)
        if adapter is None:
            log.error("no such adapter", adapter=effect.adapter, loaded=sorted(self._adapters))
        elif isinstance(effect, ReleaseHold):
            name = f"release {effect.release.signal_uid}"
            self._tasks.start(name, lambda: self._release(adapter, effect.release))
        elif isinstance(adapter, HoldsEvictions):
            self._tasks.start(f"hold {effect.signal.uid}", lambda: self._hold(adapter, effect.signal))

    def _send(self, node: str, order: Order) -> None:
        """Give an order. One that waits for its answer is put before its agent again, a changed one overtakes it."""
        name = f"order {type(order).__name__} {record_of(order)}"
        if (given := self._under_way.get(name)) is not None and is_same(given, order):
            self._agents.repeat(node, given)
            return
        self._tasks.free(name)
        self._under_way[name] = order
        self._tasks.start(name, lambda: self._order(name, node, order))

    def _over(self, name: str, order: Order) -> None:
        """It is answered, or lost: the next one may start at once."""
        if self._under_way.get(name) is order:
            del self._under_way[name]
            self._tasks.free(name)

    async def _order(self, name: str, node: str, order: Order) -> None:
        """Pass on what the agent answers; an order without an answer is lost."""
        record = self._book.get(record_of(order))
        preemption = record.signal_uid if isinstance(record, Checkpoint) else None
        structlog.contextvars.bind_contextvars(preemption=preemption, record=record_of(order))
        why = "its agent ended without an answer"
        answered = False
        try:
            async for outcome in self._agents.perform(node, order):
                if not isinstance(outcome, Progress | StageProgress):
                    answered = True
                    self._over(name, order)  # what follows does not wait until the agent has tidied up
                self._post(outcome)
        except CedanaSchedError as error:
            why = str(error)
            log.warning("order lost", order=type(order).__name__, node=node, problem=why)
        except Exception as error:  # whatever it is, the order is lost, and the core decides what follows
            why = repr(error)
            log.exception("order failed", order=type(order).__name__, node=node)
        if not answered:
            self._over(name, order)
            self._post(OrderLost(order, why))

    async def _hold(self, adapter: HoldsEvictions, signal: Signal) -> None:
        structlog.contextvars.bind_contextvars(preemption=signal.uid)
        for pause in pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS):
            try:
                until = await adapter.hold(signal)
            except RetryableError as error:
                log.warning("hold not placed, trying again", problem=error.message, pause_seconds=pause)
            except Exception:  # the eviction is not held, and the checkpoint races it
                log.exception("hold failed")
                return
            else:
                self._post(HoldPlaced(signal.uid, until))
                return
            await self._clock.wait_until(self._clock.now() + pause)
            if not self._stands(signal.uid, HoldStep.HOLDING):
                return

    async def _release(self, adapter: Adapter, release: Release) -> None:
        """Try until it is done or forgotten: an eviction that nobody lets go hangs for ever."""
        uid = release.signal_uid
        structlog.contextvars.bind_contextvars(preemption=uid)
        for pause in pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS):
            try:
                await adapter.release(release)
            except CedanaSchedError as error:
                why = str(error)
                log.warning("release failed, trying again", problem=why, pause_seconds=pause)
            except Exception as error:  # an adapter's defect must not leave the hold in place
                why = repr(error)
                log.exception("release failed, trying again", pause_seconds=pause)
            else:
                self._post(ReleaseDone(uid))
                return
            self._post(ReleaseFailed(uid, why))
            await self._clock.wait_until(self._clock.now() + pause)
            if not self._stands(uid, HoldStep.RELEASING, HoldStep.RELEASED):
                return

    def _stands(self, signal_uid: str, *steps: HoldStep) -> bool:
        hold = self._book.holds.get(signal_uid)
        return hold is not None and hold.step in steps
