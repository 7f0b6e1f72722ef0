"""Periodic snapshots of jobs: which runs have an interval, and the start of a due snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from cedana_sched.adapter.contract import Preempted
from cedana_sched.coordinator.snapshot_schedule import RunningWorkload
from cedana_sched.local.jobs.evictions import victim_of_run
from cedana_sched.local.jobs.job import Job, JobPhase
from cedana_sched.local.jobs.loop_state import Draft
from cedana_sched.model.preemption import Signal


def workloads_with_interval(jobs: Iterable[Job], node: str) -> Iterator[RunningWorkload]:
    """Yield the running incarnations of opted-in jobs whose policy has an interval."""
    for job in jobs:
        if job.description.id is None or job.description.policy.interval_seconds is None or not _runs_on(job):
            continue
        for run in job.active_runs:
            preserved, began = run.preserved_seconds, run.began_at
            saved_at = began + preserved if began is not None and preserved > 0 else None
            yield RunningWorkload(victim_of_run(job, run, node), saved_at)


def report_due_snapshot(draft: Draft, signal: Signal) -> None:
    """Report a due snapshot to the coordinator, unless its job has changed or is being checkpointed already."""
    found = draft.find_run(signal.victims[0].workload.uid)
    if found is None:
        return
    job, _ = found
    runs = {run.uid for run in job.active_runs}
    if not _runs_on(job) or job.snapshot_signal is not None or runs != {one.workload.uid for one in signal.victims}:
        return
    draft.put(replace(job, snapshot_signal=signal.uid))
    draft.signals[signal.uid] = signal
    draft.reports.append(Preempted(signal))


def _runs_on(job: Job) -> bool:
    """Whether the whole job runs, and is not about to leave its place."""
    return job.phase is JobPhase.RUNNING and not job.cancelling and not job.has_failed_replica
