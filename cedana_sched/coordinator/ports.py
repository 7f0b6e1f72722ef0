"""Ports of the shell: protocols implemented by the embedded engine and `cluster/coordinator`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from cedana_sched.coordinator.core import NodeLost, PublishEvent
from cedana_sched.model.orders import Order, Outcome
from cedana_sched.model.records import Record


class Agents(Protocol):
    """The agents of all nodes."""

    def perform(self, node: str, order: Order) -> AsyncIterator[Outcome]:
        """Send an order and yield its agent's answers: any number of `Progress`, then one outcome.

        Orders run concurrently. A stream that ends without an outcome, or raises, loses the order: the coordinator
        sends it again.

        Raises:
            RetryableError: the agent is unreachable.
        """
        ...

    def repeat_order(self, node: str, order: Order) -> None:
        """Ensure that the agent has an order that is unanswered while `perform` yields. Must not block.

        A no-op where the order cannot be lost while `perform` yields.
        """
        ...

    def lost_nodes(self) -> AsyncIterator[NodeLost]:
        """Yield nodes that are permanently lost. A restarted agent resumes its orders itself, or they are lost."""
        ...


class Journal(Protocol):
    """Durable storage of the records."""

    async def load(self) -> tuple[Record, ...]:
        """Return every record that was saved and not dropped."""
        ...

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...]) -> None:
        """Write `records` and drop `forget` in one atomic step; durable on return.

        Raises:
            RetryableError: not writable now; nothing was written. The coordinator retries, and executes no instruction
                before a retry succeeds. Any other error ends the coordinator.
        """
        ...


class Clock(Protocol):
    """Seconds since the epoch; tests substitute their own."""

    def now(self) -> float: ...

    async def wait_until(self, at: float) -> None:
        """Return once `now()` is at least `at`, or would be, had the clock not been set back meanwhile."""
        ...


class EventListener(Protocol):
    """Consumer of published events: the engine's log, the CLI's live view, the cluster's Events and metrics."""

    def on_event(self, event: PublishEvent) -> None:
        """Handle an event whose records are persisted. Runs in the coordinator's event loop: must not block."""
        ...
