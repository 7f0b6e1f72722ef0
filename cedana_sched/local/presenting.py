"""Conversion of jobs, the coordinator's records and the scheduler's ledger into the API's views."""

from __future__ import annotations

from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.local.configuration import Configuration
from cedana_sched.local.jobs.job import PLACED_PHASES, Job, JobPhase, Run
from cedana_sched.local.record_cache import RecordCache
from cedana_sched.local.scheduler.ledger import Ledger
from cedana_sched.local.views import CheckpointView, EventView, GroupView, JobView, RestoreView, RunView
from cedana_sched.model.records import Checkpoint, Restore


def job_view(job: Job, records: RecordCache) -> JobView:
    """Return the view of a job, with its newest checkpoint and its newest start."""
    description = job.description
    began = [run.began_at for run in job.runs if run.began_at is not None]
    checkpoint = records.newest_checkpoint_of(frozenset(run.uid for run in job.runs))
    restore = records.newest_restore_of(job.runs[-1].uid) if job.runs else None
    return JobView(
        uid=job.uid,
        name=description.name,
        namespace=description.namespace,
        id=description.id,
        group=description.group,
        phase=job.phase.value,
        why=job.why,
        argv=description.argv,
        priority=description.priority,
        cpus=description.request.cpu / 1000,
        memory_bytes=description.request.memory,
        replicas=description.replicas,
        submitted_at=description.submitted_at,
        started_at=min(began, default=None),
        ended_at=job.ended_at,
        preemptions=job.preemptions,
        work_saved_seconds=job.work_saved_seconds,
        exit_code=job.exit_code,
        signal=job.signal,
        stdout=description.stdout,
        stderr=description.stderr,
        runs=tuple(_run_view(run) for run in job.runs),
        checkpoint=_checkpoint_view(checkpoint, records.preemptor_of(checkpoint)) if checkpoint else None,
        restore=_restore_view(restore) if restore else None,
        obstacle=next((run.obstacle.message for run in job.active_runs if run.obstacle is not None), None),
        tty=description.tty,
    )


def _run_view(run: Run) -> RunView:
    return RunView(
        uid=run.uid,
        index=run.index,
        started_at=run.began_at,
        ended_at=run.ended_at,
        restored_from=run.restored_from,
        cold_because=run.cold_because,
        exit_code=run.exit_code,
        signal=run.signal,
    )


def _checkpoint_view(checkpoint: Checkpoint, preemptor: str | None) -> CheckpointView:
    transfer = checkpoint.transfer
    return CheckpointView(
        uid=checkpoint.uid,
        step=checkpoint.step.value,
        phase=checkpoint.phase.value,
        reason=checkpoint.reason,
        preemptor=preemptor,
        created_at=checkpoint.created_at,
        deadline=checkpoint.deadline,
        frozen_at=checkpoint.frozen_at,
        committed_at=checkpoint.committed_at,
        finished_at=checkpoint.finished_at,
        snapshot=str(checkpoint.snapshot) if checkpoint.snapshot else None,
        read_bytes=transfer.read_bytes,
        zero_bytes=transfer.zero_bytes,
        reused_bytes=transfer.reused_bytes,
        stored_bytes=transfer.stored_bytes,
        failure=checkpoint.failure,
    )


def _restore_view(restore: Restore) -> RestoreView:
    return RestoreView(
        uid=restore.uid,
        step=restore.step.value,
        created_at=restore.created_at,
        snapshot=str(restore.snapshot) if restore.snapshot else None,
        cold=restore.cold,
        failure=restore.failure,
        running_at=restore.running_at,
    )


def group_views(configuration: Configuration, jobs: tuple[Job, ...]) -> tuple[GroupView, ...]:
    """Return each group's quota and usage, by the scheduler's own accounting."""
    placed = [(job.description.group, job.gang_request) for job in jobs if job.phase in PLACED_PHASES]
    quota = Ledger(configuration.cohort, placed)
    views = []
    for name, group in configuration.cohort.groups.items():
        used, borrowed = quota.used(name), quota.borrowed(name)
        own = [job for job in jobs if job.description.group == name]
        views.append(
            GroupView(
                name=name,
                nominal_cpus=group.nominal.cpu / 1000,
                nominal_memory_bytes=group.nominal.memory,
                used_cpus=used.cpu / 1000,
                used_memory_bytes=used.memory,
                borrowed_cpus=borrowed.cpu / 1000,
                weight=group.weight,
                weighted_share=quota.dominant_share_of(name)[1],
                running=sum(job.phase in PLACED_PHASES for job in own),
                pending=sum(job.phase is JobPhase.QUEUED for job in own),
            )
        )
    return tuple(views)


def event_view(event: PublishEvent, at: float, job: str | None) -> EventView:
    """Return an event of the coordinator as an event of a job."""
    return EventView(at, event.kind, event.text, warning=event.severity is Severity.WARNING, job=job)
