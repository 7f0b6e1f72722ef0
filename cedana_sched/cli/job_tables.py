"""Formatting of jobs, groups and the engine as tables and text."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cedana_sched.cli import units
from cedana_sched.cli.output import Table, plain_table

if TYPE_CHECKING:
    from cedana_sched.local.views import CheckpointView, EngineView, EventView, GroupView, JobView, RestoreView, RunView

ENDED = frozenset({"Succeeded", "Failed", "Cancelled"})
"""Terminal phases of a job."""

_SHORT = 8
JOB_COLUMNS = (
    "JOB", "NAME", "ID", "GROUP", "PHASE", "PRIORITY", "CPUS", "MEMORY", "AGE", "PREEMPTED", "SAVED", "WHY",
)  # fmt: skip

DISPENSABLE = ("MEMORY", "PRIORITY", "ID", "CPUS", "JOB", "PREEMPTED")


def jobs_table(jobs: Iterable[JobView], now: float, empty: str = "no jobs") -> Table:
    return Table(JOB_COLUMNS, [_job_row(job, now) for job in jobs], empty, DISPENSABLE)


def _job_row(job: JobView, now: float) -> tuple[str, ...]:
    return (
        job.uid[:_SHORT],
        job.name,
        job.id or units.ABSENT,
        job.group,
        job.phase,
        str(job.priority),
        units.format_number(job.cpus),
        units.format_size(job.memory_bytes),
        units.format_age(job.submitted_at, now),
        str(job.preemptions),
        units.format_duration(job.work_saved_seconds) if job.work_saved_seconds else units.ABSENT,
        _why_text(job),
    )


def _why_text(job: JobView) -> str:
    if job.phase == "Preempting" and job.checkpoint:
        return progress_text(job.checkpoint)
    if job.phase == "Running" and job.obstacle:
        return f"cannot be saved: {job.obstacle}"
    return job.why


def job_line(job: JobView) -> str:
    """Format a job as one line, for plain progress."""
    why = f": {job.why}" if job.why else ""
    return f"{job.name} ({job.uid[:_SHORT]}) {job.phase}{why}"


def event_line(event: EventView) -> str:
    about = f" {event.job}" if event.job else ""
    return f"{'! ' if event.warning else ''}{event.reason}{about}: {event.text}"


def progress_text(checkpoint: CheckpointView) -> str:
    """Format the progress of a checkpoint."""
    if not checkpoint.read_bytes:
        return checkpoint.step
    read, stored = map(units.format_size, (checkpoint.read_bytes, checkpoint.stored_bytes))
    return f"{checkpoint.step}, {read} read, {stored} stored"


def job_text(job: JobView, now: float) -> str:
    """Format all of a job, for `describe`."""
    ended = f"exit code {job.exit_code}" if job.exit_code is not None else units.ABSENT
    fields = [
        ("Name", job.name),
        ("UID", job.uid),
        ("Checkpoint id", f"{job.namespace}/{job.id}" if job.id else "none: a preemption kills this job"),
        ("Group", job.group),
        ("Phase", f"{job.phase} ({job.why})" if job.why else job.phase),
        ("Command", shlex.join(job.argv)),
        (
            "Requests",
            f"{units.format_number(job.cpus)} cpus, {units.format_size(job.memory_bytes)}, priority {job.priority}",
        ),
        ("Replicas", str(job.replicas)),
        ("Submitted", f"{units.format_age(job.submitted_at, now)} ago"),
        ("Ended", f"signal {job.signal}" if job.signal else ended),
        ("Checkpointable", f"no: {job.obstacle}" if job.obstacle else units.ABSENT),
        ("Preempted", f"{job.preemptions} times, {units.format_duration(job.work_saved_seconds)} of work saved"),
        ("Stdout", job.stdout),
        ("Stderr", job.stderr),
    ]
    parts = [fields_text(fields)]
    if job.runs:
        parts.append("Runs\n" + _indented(plain_table(_runs_table(job.runs))))
    if job.checkpoint:
        parts.append("Newest checkpoint\n" + _indented(fields_text(_checkpoint_fields(job.checkpoint))))
    if job.restore:
        parts.append("Newest start\n" + _indented(fields_text(_restore_fields(job.restore))))
    return "\n\n".join(parts)


def _runs_table(runs: Iterable[RunView]) -> Table:
    table = Table(("RUN", "REPLICA", "LASTED", "STARTED", "ENDED"))
    for run in runs:
        lasted = run.ended_at - run.started_at if run.started_at and run.ended_at else None
        cold = f"cold: {run.cold_because}" if run.cold_because else "from its beginning"
        code = units.ABSENT if run.exit_code is None else f"exit code {run.exit_code}"
        table.rows.append((
            run.uid,
            str(run.index),
            units.format_duration(lasted),
            f"from {run.restored_from}" if run.restored_from else cold,
            f"signal {run.signal}" if run.signal else code,
        ))  # fmt: skip
    return table


def _checkpoint_fields(checkpoint: CheckpointView) -> list[tuple[str, str]]:
    began = checkpoint.created_at

    def after(moment: float | None) -> str:
        return units.ABSENT if moment is None else f"{units.format_duration(moment - began)} after the notice"

    return [
        ("Phase", f"{checkpoint.phase} ({checkpoint.step})"),
        ("Reason", f"{checkpoint.reason}, for {checkpoint.preemptor}" if checkpoint.preemptor else checkpoint.reason),
        ("Deadline", after(checkpoint.deadline)),
        ("Frozen", after(checkpoint.frozen_at)),
        ("Committed", after(checkpoint.committed_at)),
        ("Snapshot", checkpoint.snapshot or units.ABSENT),
        ("Read", f"{units.format_size(checkpoint.read_bytes)}, of it zeros {units.format_size(checkpoint.zero_bytes)}"),
        (
            "Stored",
            f"{units.format_size(checkpoint.stored_bytes)}, already there {units.format_size(checkpoint.reused_bytes)}",
        ),
        ("Failure", checkpoint.failure or units.ABSENT),
    ]


def _restore_fields(restore: RestoreView) -> list[tuple[str, str]]:
    took = restore.running_at - restore.created_at if restore.running_at else None
    return [
        ("Step", restore.step),
        ("Snapshot", restore.snapshot or units.ABSENT),
        ("Cold", "yes" if restore.cold else "no"),
        ("Running", units.ABSENT if took is None else f"{units.format_duration(took)} after it got its place"),
        ("Failure", restore.failure or units.ABSENT),
    ]


def engine_text(engine: EngineView, now: float) -> str:
    capacity = f"{units.format_number(engine.capacity_cpus)} cpus, {units.format_size(engine.capacity_memory_bytes)}"
    fields = [
        ("Version", engine.version),
        ("Process", f"{engine.pid}, since {units.format_age(engine.started_at, now)}"),
        ("State", engine.state_directory),
        ("Store", engine.store),
        ("Sealed", f"with {engine.key_file}" if engine.key_file else "no"),
        ("CRIU", engine.criu),
        ("Capacity", capacity),
    ]
    return fields_text(fields) + "\n\n" + plain_table(groups_table(engine.groups))


def groups_table(groups: Iterable[GroupView]) -> Table:
    columns = ("GROUP", "CPUS", "NOMINAL", "BORROWED", "MEMORY", "NOMINAL", "WEIGHT", "SHARE", "RUNNING", "PENDING")
    rows: list[tuple[str, ...]] = [
        (
            group.name,
            units.format_number(group.used_cpus),
            units.format_number(group.nominal_cpus),
            units.format_number(group.borrowed_cpus),
            units.format_size(group.used_memory_bytes),
            units.format_size(group.nominal_memory_bytes),
            units.format_number(group.weight),
            units.format_number(group.weighted_share),
            str(group.running),
            str(group.pending),
        )
        for group in groups
    ]
    return Table(columns, rows, "no groups")


def fields_text(fields: list[tuple[str, str]]) -> str:
    """Format one field per line, with aligned values."""
    width = max(len(name) for name, _ in fields) + 1
    return "\n".join(f"{name + ':':<{width}}  {value}" for name, value in fields)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
