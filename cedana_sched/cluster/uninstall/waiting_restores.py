"""Restores that the uninstallation ends, because what they wait for may never happen.

A restore waits without a limit for the end of its predecessor: a pod that was deleted by force may still run on a node
that is cut off. Once the product is gone, no restore can wait. So one that has waited for a while is refused: its pod
starts cold or fails, as its policy requires, and an Event names the reason. While a checkpoint of its identity is in
flight, which ends by its own deadline, it waits on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from cedana_sched.adapter.contract import Starting
from cedana_sched.cluster.uninstall.records_in_flight import RecordsInFlight
from cedana_sched.coordinator.core import Reported
from cedana_sched.model.records import Record, Restore, RestoreStep

log = structlog.get_logger(__name__)

START_SECONDS: Final = 20.0
"""Time that a pod needs to start once its restore is refused."""


class WaitingRestores:
    """Refuses restores that wait too long. `on_records_saved` must receive every change of a record.

    Args:
        in_flight: has the same records.
        refuse: posts the refusal to the coordinator.
        patience: seconds that a restore may wait from now on.
        until: when all must have started, in seconds of the event loop's clock.
    """

    def __init__(
        self, in_flight: RecordsInFlight, refuse: Callable[[Reported], None], patience: float, until: float
    ) -> None:
        self._in_flight = in_flight
        self._refuse = refuse
        self._patience = patience
        self._latest = until - START_SECONDS
        self._waiting: dict[str, Restore] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._overdue: set[str] = set()

    def on_records_saved(self, records: tuple[Record, ...], forgotten: tuple[Record, ...]) -> None:
        """See `OnRecordsSaved`."""
        for record in (*records, *forgotten):
            if not isinstance(record, Restore):
                continue
            if record.step is RestoreStep.WAITING:
                self._waiting[record.uid] = record
                self._set_timer(record.uid)
            else:
                self._drop(record.uid)
        for uid in tuple(self._overdue):
            self._refuse_if_possible(self._waiting[uid])

    def close(self) -> None:
        """Refuse no more."""
        for uid in tuple(self._waiting):
            self._drop(uid)

    def _set_timer(self, uid: str) -> None:
        if uid in self._timers:
            return
        loop = asyncio.get_running_loop()
        at = min(loop.time() + self._patience, self._latest)
        self._timers[uid] = loop.call_at(at, self._on_overdue, uid)

    def _drop(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._overdue.discard(uid)
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()

    def _on_overdue(self, uid: str) -> None:
        self._overdue.add(uid)
        self._refuse_if_possible(self._waiting[uid])

    def _refuse_if_possible(self, restore: Restore) -> None:
        if self._in_flight.has_checkpoint_of(restore.identity):
            return
        cause = f", and {restore.predecessor}" if restore.predecessor is not None else ""
        why = f"the suite is being uninstalled{cause}"
        where = f"{restore.workload.namespace}/{restore.workload.name}"
        log.warning("restore refused: its pod does not wait any more", pod=where, reason=why)
        report = Starting(
            restore.workload,
            restore.identity,
            restore.policy,
            requested_snapshot=restore.requested_snapshot,
            incarnation=restore.incarnation,
            newest_snapshot=restore.newest_snapshot,
            refused=why,
        )
        self._refuse(Reported(restore.adapter, report))
