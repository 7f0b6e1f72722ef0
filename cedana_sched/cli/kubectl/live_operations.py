"""Operations in progress, kept up to date by watches, with their rates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cedana_sched.cli.kubectl.tables import operation_key, operations_table
from cedana_sched.cli.kubectl.view_builders import (
    SnapshotsByIdentity,
    view_checkpoint,
    view_hold_as_operation,
    view_restore,
)
from cedana_sched.cli.kubectl.views import OperationView
from cedana_sched.cli.output import fit_to_width, rich_table
from cedana_sched.kube.client import Api
from cedana_sched.kube.own_kinds.shown_records import CheckpointRead, HoldRead, RestoreRead
from cedana_sched.kube.resources import CHECKPOINTS, PREEMPTION_HOLDS, RESTORES
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

RATE_SECONDS: Final = 10.0
"""A rate is measured over the last changes of so many seconds."""


class RateMeter:
    """Bytes per second of one operation, from what was observed in the last `RATE_SECONDS`."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def observe(self, at: float, done_bytes: int) -> None:
        """Add an observation."""
        if self._seen and done_bytes < self._seen[-1][1]:  # another attempt
            self._seen.clear()
        self._seen.append((at, done_bytes))
        while len(self._seen) > 2 and self._seen[1][0] < at - RATE_SECONDS:
            del self._seen[0]

    @property
    def rate(self) -> float | None:
        """None until two observations have different times."""
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else None


class LiveOperations:
    """The operations in progress as a rich renderable, kept up to date by watches."""

    def __init__(self, clock: Callable[[], float] = SERVER_TIME.seconds) -> None:
        self._clock = clock
        self._views: dict[str, OperationView] = {}
        self._meters: dict[str, RateMeter] = {}

    async def run(self, api: Api, namespace: str | None, on_change: Callable[[OperationView], None]) -> None:
        """Follow the cluster, forever; `on_change` gets each operation that begins, changes or ends.

        Raises:
            ApiError: a kind is not served any more.
        """
        checkpoints = Informer(Watch(api, CHECKPOINTS, CheckpointRead, namespace=namespace))

        def view_of(one: Any) -> OperationView:
            if isinstance(one, HoldRead):
                return view_hold_as_operation(one)
            snapshots = SnapshotsByIdentity(checkpoints)
            return view_checkpoint(one, snapshots) if isinstance(one, CheckpointRead) else view_restore(one, snapshots)

        def on_object_change(before: Any, now: Any) -> None:
            was, is_now = before is not None and before.is_in_flight, now is not None and now.is_in_flight
            if was or is_now:
                self._put(view_of(now if now is not None else before), is_over=not is_now, on_change=on_change)

        others = (
            Informer(Watch(api, PREEMPTION_HOLDS, HoldRead, namespace=namespace)),
            Informer(Watch(api, RESTORES, RestoreRead, namespace=namespace)),
        )
        for informer in (checkpoints, *others):
            informer.subscribe(on_object_change)
        async with asyncio.TaskGroup() as group:
            for informer in (checkpoints, *others):
                group.create_task(informer.run())

    def _put(self, one: OperationView, *, is_over: bool, on_change: Callable[[OperationView], None]) -> None:
        key = operation_key(one)
        if is_over:
            self._views.pop(key, None)
            self._meters.pop(key, None)
        else:
            self._views[key] = one
            self._meters.setdefault(key, RateMeter()).observe(self._clock(), one.done_bytes)
        on_change(one)

    def rates(self) -> dict[str, float]:
        """Return bytes per second by key, as far as measured."""
        return {key: rate for key, meter in self._meters.items() if (rate := meter.rate) is not None}

    def operations(self) -> list[OperationView]:
        """Return what is in progress, the oldest first."""
        return sorted(self._views.values(), key=lambda one: one.began_at or 0.0)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        table = operations_table(self.operations(), self._clock(), self.rates())
        yield rich_table(fit_to_width(table, options.max_width)) if table.rows else table.empty
