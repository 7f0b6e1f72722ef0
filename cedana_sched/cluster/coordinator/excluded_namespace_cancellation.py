"""Cancels checkpoints in namespaces that are not served, so that no eviction is held there any longer.

These checkpoints began before an admin excluded the namespace, or from an adapter's stale cache.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import ClassVar

import structlog

from cedana_sched.adapter.contract import PreemptionCancelled, Report
from cedana_sched.adapter.report_fanout import ReportFanout
from cedana_sched.model.preemption import Release
from cedana_sched.model.records import Checkpoint, Record
from cedana_sched.model.served_namespaces import ServedNamespaces

log = structlog.get_logger(__name__)


class ExcludedNamespacesAdapter:
    """Implements `adapter.contract.Adapter`: it reports, and has nothing to release.

    `on_records_saved` must receive all records first, then every saved change.
    """

    name: ClassVar[str] = "excluded"

    def __init__(self, served: ServedNamespaces) -> None:
        self._served = served
        self._standing: dict[str, PreemptionCancelled] = {}
        """By uid of the checkpoint."""
        self._readers: ReportFanout[Report] = ReportFanout()

    def on_records_saved(self, records: Collection[Record], forgotten: Collection[Record]) -> None:
        """See `journal.OnRecordsSaved`."""
        for record in records:
            if not isinstance(record, Checkpoint):
                continue
            why = self._served.objection(record.workload.namespace)
            if why is None or record.is_terminal:
                self._standing.pop(record.uid, None)
            elif record.uid not in self._standing:
                self._call_off(record, why)
        for record in forgotten:
            self._standing.pop(record.uid, None)

    async def reports(self) -> AsyncIterator[Report]:
        """Report each preemption with a checkpoint in flight there, once."""
        with self._readers.subscribed_queue(self._standing.values()) as queue:
            while True:
                yield await queue.get()

    async def release(self, release: Release) -> None:
        """No-op: this adapter holds no eviction."""

    def _call_off(self, checkpoint: Checkpoint, why: str) -> None:
        log.warning("cancelled", preemption=checkpoint.signal_uid, pod=checkpoint.workload.name, reason=why)
        cancelled = self._standing[checkpoint.uid] = PreemptionCancelled(checkpoint.signal_uid, why)
        self._readers.publish(cancelled)
