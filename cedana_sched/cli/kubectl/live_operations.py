"""Operations in progress, kept up to date by watches, with their rates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cedana_sched.cli.cluster_reader import permission_error
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
from cedana_sched.kube.errors import RefusedByServerError
from cedana_sched.kube.own_kinds.shown_records import CheckpointRead, HoldRead, RestoreRead
from cedana_sched.kube.resources import CHECKPOINTS, PREEMPTION_HOLDS, RESTORES
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

RATE_SECONDS: Final = 10.0
"""A rate is measured over the last changes of so many seconds."""
REFRESH_SECONDS: Final = 0.25
_OTHER_LINES: Final = 3
"""Of a terminal, beside the rows: the columns' names, how many more rows there are, and the cursor's line."""

_Record = CheckpointRead | RestoreRead | HoldRead


class _Change(NamedTuple):
    record: _Record
    is_over: bool
    at: float
    """When it was observed."""


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

    def __init__(self, clock: Callable[[], float] = SERVER_TIME.seconds, *, is_wide: bool = False) -> None:
        """Show all columns on a narrow terminal, too, if `is_wide`."""
        self._clock = clock
        self._is_wide = is_wide
        self._views: dict[str, OperationView] = {}
        self._meters: dict[str, RateMeter] = {}
        self._unseen: list[_Change] = []

    async def run(self, api: Api, namespace: str | None, on_refresh: Callable[[Sequence[OperationView]], None]) -> None:
        """Follow the cluster, forever; `on_refresh` gets each operation that has begun, changed or ended since before.

        Raises:
            ApiError: a kind is not served any more.
            MissingPermissionError: a kind may not be watched.
        """
        checkpoints = Watch(api, CHECKPOINTS, CheckpointRead, namespace=namespace)
        holds = Watch(api, PREEMPTION_HOLDS, HoldRead, namespace=namespace)
        restores = Watch(api, RESTORES, RestoreRead, namespace=namespace)
        watches: tuple[Watch[Any], ...] = (checkpoints, holds, restores)
        known = Informer(checkpoints)
        informers: tuple[Informer[Any], ...] = (known, Informer(holds), Informer(restores))
        for informer in informers:
            informer.subscribe(self._note_change)
        try:
            async with asyncio.TaskGroup() as group:
                for watch, informer in zip(watches, informers, strict=True):
                    group.create_task(informer.run(), name=f"watch of {watch.resource.plural}")
                while True:
                    await asyncio.sleep(REFRESH_SECONDS)
                    for watch in watches:
                        _check_permission(watch, namespace)
                    if all(informer.synced.is_set() for informer in informers):
                        on_refresh(self._take_changes(known))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    def _note_change(self, before: _Record | None, now: _Record | None) -> None:
        was, is_now = before is not None and before.is_in_flight, now is not None and now.is_in_flight
        record = now if now is not None else before
        if record is not None and (was or is_now):
            self._unseen.append(_Change(record, is_over=not is_now, at=self._clock()))

    def _take_changes(self, checkpoints: Iterable[CheckpointRead]) -> list[OperationView]:
        """Update the operations by what has changed, and return that."""
        if not self._unseen:
            return []
        snapshots, changes = SnapshotsByIdentity(checkpoints), self._unseen
        self._unseen = []
        return [self._take_change(change, snapshots) for change in changes]

    def _take_change(self, change: _Change, snapshots: SnapshotsByIdentity) -> OperationView:
        one = _view_of(change.record, snapshots)
        key = operation_key(one)
        if change.is_over:
            self._views.pop(key, None)
            self._meters.pop(key, None)
        else:
            self._views[key] = one
            self._meters.setdefault(key, RateMeter()).observe(change.at, one.done_bytes)
        return one

    def rates(self) -> dict[str, float]:
        """Return bytes per second by key, as far as measured."""
        return {key: rate for key, meter in self._meters.items() if (rate := meter.rate) is not None}

    def operations(self) -> list[OperationView]:
        """Return what is in progress, the oldest first."""
        return sorted(self._views.values(), key=lambda one: one.began_at or 0.0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        operations = self.operations()
        fitting = max(console.height - _OTHER_LINES, 1)
        table = operations_table(operations[:fitting], self._clock(), self.rates())
        fitted = table if self._is_wide else fit_to_width(table, options.max_width)
        yield rich_table(fitted) if table.rows else table.empty
        if len(operations) > fitting:
            yield f"and {len(operations) - fitting} more"


def _view_of(record: _Record, snapshots: SnapshotsByIdentity) -> OperationView:
    match record:
        case HoldRead():
            return view_hold_as_operation(record)
        case CheckpointRead():
            return view_checkpoint(record, snapshots)
        case RestoreRead():
            return view_restore(record, snapshots)


def _check_permission(watch: Watch[Any], namespace: str | None) -> None:
    if isinstance(watch.problem, RefusedByServerError):
        raise permission_error(watch.problem, "watch", watch.resource, namespace) from watch.problem
