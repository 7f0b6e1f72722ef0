"""Executes the core's instructions as named tasks: send an order, place a hold, release a hold."""

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
    record_uid_of,
)
from cedana_sched.coordinator.core.record_registry import RecordRegistry
from cedana_sched.coordinator.ports import Agents, Clock
from cedana_sched.coordinator.tasks import Tasks
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
from cedana_sched.retrying import API_CALLS, Backoff

log = structlog.get_logger(__name__)

Effect = Send | PlaceHold | ReleaseHold


def is_same(given: Order, order: Order) -> bool:
    """Return whether `order` repeats `given`, ignoring time budgets, which shrink with each repetition.

    The namespace uid is ignored too: it may have been corrected, and the agent reads it elsewhere.
    """
    return _without_time_budgets(given) == _without_time_budgets(order)


def _without_time_budgets(order: Order) -> Order:
    if isinstance(order, FindSnapshot):
        return replace(order, newer_seconds=0.0)
    if isinstance(order, ApplyRetention | RemoveSnapshot | DiscardCancelled):
        return order
    if isinstance(order, Dump):
        order = replace(order, timeout_seconds=0.0)
    return replace(order, workload=replace(order.workload, namespace_uid=""))


class Effects:
    """Executes `Send`, `PlaceHold` and `ReleaseHold`; results are posted through `post`."""

    def __init__(
        self,
        tasks: Tasks,
        registry: RecordRegistry,
        agents: Agents,
        adapters: Mapping[str, Adapter],
        clock: Clock,
        post: Callable[[Event], None],
    ) -> None:
        self._tasks = tasks
        self._registry = registry
        self._agents = agents
        self._adapters = adapters
        self._clock = clock
        self._post = post
        self._under_way: dict[str, Order] = {}
        """Unanswered orders by task name."""

    def run(self, effect: Effect) -> None:
        """Start the effect; idempotent while its task is running."""
        if isinstance(effect, Send):
            self._send_order(effect.node, effect.order)
            return
        adapter = self._adapters.get(effect.adapter)
        if adapter is None:
            log.error("no such adapter", adapter=effect.adapter, loaded=sorted(self._adapters))
        elif isinstance(effect, ReleaseHold):
            name = f"release {effect.release.signal_uid}"
            self._tasks.start(name, lambda: self._release(adapter, effect.release))
        elif isinstance(adapter, HoldsEvictions):
            self._tasks.start(f"hold {effect.signal.uid}", lambda: self._hold(adapter, effect.signal))

    def _send_order(self, node: str, order: Order) -> None:
        """Send an order. An unanswered identical order is repeated to its agent; a changed order supersedes it."""
        name = f"order {type(order).__name__} {record_uid_of(order)}"
        if (given := self._under_way.get(name)) is not None and is_same(given, order):
            self._agents.repeat_order(node, given)
            return
        self._tasks.free_name(name)
        self._under_way[name] = order
        self._tasks.start(name, lambda: self._perform_order(name, node, order))

    def _free_order_name(self, name: str, order: Order) -> None:
        """Free the order's task name after an answer or a loss, so that the next order may start."""
        if self._under_way.get(name) is order:
            del self._under_way[name]
            self._tasks.free_name(name)

    async def _perform_order(self, name: str, node: str, order: Order) -> None:
        """Post the agent's answers; an order without an answer is lost."""
        record = self._registry.get(record_uid_of(order))
        preemption = record.signal_uid if isinstance(record, Checkpoint) else None
        structlog.contextvars.bind_contextvars(preemption=preemption, record=record_uid_of(order))
        why = "its agent ended without an answer"
        answered = False
        try:
            async for outcome in self._agents.perform(node, order):
                if not isinstance(outcome, Progress | StageProgress):
                    answered = True
                    self._free_order_name(name, order)  # the next order need not wait for the agent's cleanup
                self._post(outcome)
        except CedanaSchedError as error:
            why = str(error)
            log.warning("order lost", order=type(order).__name__, node=node, error=why)
        except Exception as error:  # the order is lost, whatever the error; the core decides what follows
            why = repr(error)
            log.exception("order failed", order=type(order).__name__, node=node)
        if not answered:
            self._free_order_name(name, order)
            self._post(OrderLost(order, why))

    async def _hold(self, adapter: HoldsEvictions, signal: Signal) -> None:
        structlog.contextvars.bind_contextvars(preemption=signal.uid)
        backoff = Backoff(API_CALLS)
        while True:
            pause = backoff.next_pause()
            try:
                until = await adapter.hold(signal)
            except RetryableError as error:
                log.warning("hold not placed, trying again", error=error.message, pause_seconds=pause)
            except Exception:  # the eviction is not held, and races the checkpoint
                log.exception("hold failed")
                return
            else:
                self._post(HoldPlaced(signal.uid, until))
                return
            await self._clock.wait_until(self._clock.now() + pause)
            if not self._is_hold_in_steps(signal.uid, HoldStep.HOLDING):
                return

    async def _release(self, adapter: Adapter, release: Release) -> None:
        """Retry until the release succeeds or its hold is dropped: an unreleased eviction hangs forever."""
        uid = release.signal_uid
        structlog.contextvars.bind_contextvars(preemption=uid)
        backoff = Backoff(API_CALLS)
        while True:
            pause = backoff.next_pause()
            try:
                await adapter.release(release)
            except CedanaSchedError as error:
                why = str(error)
                log.warning("release failed, trying again", error=why, pause_seconds=pause)
            except Exception as error:  # a defect of the adapter must not keep the hold
                why = repr(error)
                log.exception("release failed, trying again", pause_seconds=pause)
            else:
                self._post(ReleaseDone(uid))
                return
            self._post(ReleaseFailed(uid, why))
            await self._clock.wait_until(self._clock.now() + pause)
            if not self._is_hold_in_steps(uid, HoldStep.RELEASING, HoldStep.RELEASED):
                return

    def _is_hold_in_steps(self, signal_uid: str, *steps: HoldStep) -> bool:
        hold = self._registry.holds.get(signal_uid)
        return hold is not None and hold.step in steps
