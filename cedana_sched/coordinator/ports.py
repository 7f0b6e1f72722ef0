"""What the shell needs of the world: protocols that the embedded engine and `cluster/coordinator` implement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from cedana_sched.coordinator.core import NodeLost, PublishEvent
from cedana_sched.model.orders import Order, Outcome
from cedana_sched.model.records import Record


class Agents(Protocol):
    """The agents of all nodes."""

    def perform(self, node: str, order: Order) -> AsyncIterator[Outcome]:
        """Give an order and yield what its agent answers: any number of `Progress`, then one outcome.

        Orders run concurrently. A stream that ends without an outcome, or raises, means that the order is lost:
        the coordinator gives it again.

        Raises:
            RetryableError: the agent cannot be reached now.
        """
        ...

    def repeat(self, node: str, order: Order) -> None:
        """The order is still unanswered, and `perform` still yields: see to it that the agent has it. Must not block.

        Where the order cannot be lost while `perform` yields, there is nothing to do.
        """
        ...

    def changes(self) -> AsyncIterator[NodeLost]:
        """Yield when a node is gone for good. An agent that restarts finds its orders itself, or they are lost."""
        ...


class Journal(Protocol):
    """Where the records are kept."""

    async def load(self) -> tuple[Record, ...]:
        """Everything that was saved and not forgotten."""
        ...

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...]) -> None:
        """Write and drop these in one atomic step; it is durable when this returns.

        Raises:
            RetryableError: it cannot be written now; nothing was. The coordinator tries again and acts on
                nothing before it succeeds. Any other error ends the coordinator.
        """
        ...


class Clock(Protocol):
    """Seconds since the epoch; tests drive their own."""

    def now(self) -> float: ...

    async def wait_until(self, at: float) -> None:
        """Return when `now()` is at least `at`, or would be by now, had the clock not been set back meanwhile."""
        ...


class EventListener(Protocol):
    """Takes what the coordinator publishes: the engine's log, the CLI's live view, the cluster's Events and metrics."""

    def on_event(self, tell: PublishEvent) -> None:
        """Called in the coordinator's loop, after what it is about is saved: must not block."""
        ...
