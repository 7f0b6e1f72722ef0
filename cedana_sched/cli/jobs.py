"""Commands on jobs: ps, describe, preempt, checkpoint, restore, cancel."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from cedana_sched.cli import arguments, job_tables
from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command

if TYPE_CHECKING:
    from cedana_sched.local.client import EngineClient
    from cedana_sched.local.views import JobView


def register(app: typer.Typer) -> None:
    for body in (ps, describe, preempt, checkpoint, restore, cancel):
        command(app)(body)


async def ps(
    session: CommandContext,
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that have ended.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show changes until interrupted.")] = False,
) -> None:
    """List jobs, oldest first."""
    async with session.client() as client:
        if watch:
            await _print_job_changes(session, client, everything=everything)
            return
        jobs = [job for job in await client.jobs() if everything or job.phase not in job_tables.ENDED]
    empty = "no jobs" if everything else "no jobs that have not ended (--all shows the others)"
    session.output.print_result(jobs, lambda: job_tables.jobs_table(jobs, time.time(), empty))


async def _print_job_changes(session: CommandContext, client: EngineClient, *, everything: bool) -> None:
    from cedana_sched.cli.live_job_table import live_table

    if session.output.is_live_terminal:
        await live_table(session.output, client, everything=everything)
        return
    async with aclosing(client.watch()) as changes:
        async for change in changes:
            if change.job is not None:
                session.output.print_record(change, job_tables.job_line(change.job))
            elif change.event is not None:
                session.output.print_record(change, job_tables.event_line(change.event))


async def describe(session: CommandContext, job: arguments.Job) -> None:
    """Show everything about a job: its runs, its newest checkpoint, its newest start."""
    async with session.client() as client:
        found = await client.job(job)
    session.output.print_result(found, lambda: job_tables.job_text(found, time.time()))


async def preempt(
    session: CommandContext, job: arguments.Job, *, wait: arguments.Wait = False, timeout: arguments.Timeout = None
) -> None:
    """Take a job's place as a preemption would: snapshot, stop, queue again."""
    from cedana_sched.cli import units
    from cedana_sched.cli.job_watch import wait_until
    from cedana_sched.cli.progress import checkpoint_progress

    patience = units.parse_duration("timeout", timeout) if timeout else None
    async with session.client() as client:
        found = await client.job(job)
        if not wait:
            found = await client.preempt(found.uid)
        else:
            async with checkpoint_progress(client, found, session.output):
                found = await client.preempt(found.uid)
                found = await wait_until(client, found, _is_preemption_over, timeout=patience)
    _print_job(session, found)


def _is_preemption_over(job: JobView) -> bool:
    return job.phase != "Preempting"


async def checkpoint(
    session: CommandContext,
    job: arguments.Job,
    *,
    leave_running: Annotated[bool, typer.Option("--leave-running", help="The job runs on afterwards.")] = False,
) -> None:
    """Take a snapshot of a running job, and suspend it (or --leave-running)."""
    from cedana_sched.cli.job_watch import wait_until
    from cedana_sched.cli.progress import checkpoint_progress

    async with session.client() as client:
        found = await client.job(job)
        async with checkpoint_progress(client, found, session.output):
            found = await client.checkpoint(found.uid, leave_running=leave_running)
            found = await wait_until(client, found, _is_preemption_over)  # the job may still be stopping
    _print_job(session, found)


async def restore(
    session: CommandContext,
    job: arguments.Job,
    *,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Continue from this generation.", show_default="the newest")
    ] = None,
) -> None:
    """Queue a suspended or ended job again, to continue from a snapshot."""
    async with session.client() as client:
        found = await client.restore(job, generation)
    _print_job(session, found)


async def cancel(session: CommandContext, job: arguments.Job) -> None:
    """End a job. Its snapshots stay."""
    async with session.client() as client:
        found = await client.cancel(job)
    _print_job(session, found)


def _print_job(session: CommandContext, job: JobView) -> None:
    snapshot = job.checkpoint.snapshot if job.checkpoint else None
    suffix = f" [{snapshot}]" if snapshot else ""
    session.output.print_result(job, lambda: job_tables.job_line(job) + suffix)
