"""Pods and nodes that records depend on: their ends must be detected, also those that no watch reported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Checkpoint, PreemptionHold, Record, Restore


class PodNodeDependencies:
    """Index of these pods and nodes. `on_records_saved` must receive all records first, then every saved change."""

    def __init__(self) -> None:
        self._workloads: dict[str, WorkloadRef] = {}
        """By uid of the record."""
        self._began_at: dict[str, float] = {}
        """Likewise (epoch seconds)."""
        self._records: dict[str, set[str]] = {}
        """Uids of records by uid of their pod."""
        self._sinks: list[Callable[[WorkloadRef], None]] = []

    def subscribe(self, sink: Callable[[WorkloadRef], None]) -> None:
        """Call `sink` for each pod that a record newly depends on. The sink must not block."""
        self._sinks.append(sink)

    def unsubscribe(self, sink: Callable[[WorkloadRef], None]) -> None:
        self._sinks.remove(sink)

    def workloads(self) -> Iterable[WorkloadRef]:
        """Return the pods whose end a record waits for, each once."""
        return {workload.uid: workload for workload in self._workloads.values()}.values()

    def nodes(self) -> set[str]:
        """Return the nodes of these pods."""
        return {workload.node for workload in self._workloads.values() if workload.node}

    def oldest_record_times(self) -> dict[str, float]:
        """Return when the oldest record of each of these nodes began (epoch seconds)."""
        oldest: dict[str, float] = {}
        for uid, workload in self._workloads.items():
            began_at = self._began_at[uid]
            oldest[workload.node] = min(began_at, oldest.get(workload.node, began_at))
        return oldest

    def has_dependent_record(self, workload_uid: str) -> bool:
        return workload_uid in self._records

    def on_records_saved(self, records: Collection[Record], forgotten: Collection[Record]) -> None:
        """See `journal.OnRecordsSaved`."""
        for record in records:
            if isinstance(record, PreemptionHold):
                continue
            if not _waits_for_an_end(record):
                self._drop_record(record.uid)
            elif record.uid not in self._workloads:
                self._began_at[record.uid] = record.created_at
                self._add(record.uid, record.workload)
        for record in forgotten:
            self._drop_record(record.uid)

    def _add(self, uid: str, workload: WorkloadRef) -> None:
        self._workloads[uid] = workload
        self._records.setdefault(workload.uid, set()).add(uid)
        for sink in tuple(self._sinks):
            sink(workload)

    def _drop_record(self, uid: str) -> None:
        if (workload := self._workloads.pop(uid, None)) is None:
            return
        del self._began_at[uid]
        uids = self._records[workload.uid]
        uids.discard(uid)
        if not uids:
            del self._records[workload.uid]


def _waits_for_an_end(record: Checkpoint | Restore) -> bool:
    """Whether the record depends on its pod: a restore until the pod ends, a checkpoint until its node confirms."""
    if isinstance(record, Restore):
        return record.finished_at is None
    return not record.is_terminal or record.kill_pending or record.unconfirmed
