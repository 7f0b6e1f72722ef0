"""Commands on jobs: ps, describe, preempt, checkpoint, restore, cancel."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from cedana_sched.cli import arguments, tables
from cedana_sched.cli.command import command
from cedana_sched.cli.session import Session

if TYPE_CHECKING:
    from cedana_sched.local.client import EngineClient
    from cedana_sched.local.views import JobView


def register(app: typer.Typer) -> None:
    for body in (ps, describe, preempt, checkpoint, restore, cancel):
        command(app)(body)


async def ps(
    session: Session,
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that have ended.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show changes until interrupted.")] = False,
) -> None:
    """List jobs, oldest first."""
    async with session.client() as client:
        if watch:
            await _watch(session, client, everything=everything)
            return
        jobs = [job for job in await client.jobs() if everything or job.phase not in tables.ENDED]
    empty = "no jobs" if everything else "no jobs that have not ended (--all shows the others)"
    session.output.data(jobs, lambda: tables.jobs_table(jobs, time.time(), empty))


async def _watch(session: Session, client: EngineClient, *, everything: bool) -> None:
    from cedana_sched.cli.live import live_table

    if session.output.moves:
        await live_table(session.output, client, everything=everything)
        return
    async with aclosing(client.watch()) as changes:
        async for change in changes:
            if change.job is not None:
                session.output.record(change, tables.job_line(change.job))
            elif change.event is not None:
                session.output.record(change, tables.event_line(change.event))


async def describe(session: Session, job: arguments.Job) -> None:
    """Show everything about a job: its runs, its newest checkpoint, its newest start."""
    async with session.client() as client:
        found = await client.job(job)
    session.output.data(found, lambda: tables.job_text(found, time.time()))


async def preempt(
    session: Session, job: arguments.Job, *, wait: arguments.Wait = False, timeout: arguments.Timeout = None
) -> None:
    """Take a job's place as a preemption would: snapshot, stop, queue again."""
    from cedana_sched.cli import units
    from cedana_sched.cli.progress import checkpoint_progress
    from cedana_sched.cli.waiting import wait_until

    patience = units.parse_duration("timeout", timeout) if timeout else None
    async with session.client() as client:
        found = await client.job(job)
        if not wait:
            found = await client.preempt(found.uid)
        else:
            async with checkpoint_progress(client, found, session.output):
                found = await client.preempt(found.uid)
                found = await wait_until(client, found, _is_settled, timeout=patience)
    _print(session, found)


def _is_settled(job: JobView) -> bool:
    return job.phase != "Preempting"


async def checkpoint(
    session: Session,
    job: arguments.Job,
    *,
    leave_running: Annotated[bool, typer.Option("--leave-running", help="The job runs on afterwards.")] = False,
) -> None:
    """Take a snapshot of a running job, and suspend it (or --leave-running)."""
    from cedana_sched.cli.progress import checkpoint_progress
    from cedana_sched.cli.waiting import wait_until

    async with session.client() as client:
        found = await client.job(job)
        async with checkpoint_progress(client, found, session.output):
            found = await client.checkpoint(found.uid, leave_running=leave_running)
            found = await wait_until(client, found, _is_settled)  # the job may still be stopping
    _print(session, found)


async def restore(
    session: Session,
    job: arguments.Job,
    *,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Continue from this generation.", show_default="the newest")
    ] = None,
) -> None:
    """Queue a suspended or ended job again, to continue from a snapshot."""
    async with session.client() as client:
        found = await client.restore(job, generation)
    _print(session, found)


async def cancel(session: Session, job: arguments.Job) -> None:
    """End a job. Its snapshots stay."""
    async with session.client() as client:
        found = await client.cancel(job)
    _print(session, found)


def _print(session: Session, job: JobView) -> None:
    snapshot = job.checkpoint.snapshot if job.checkpoint else None
    suffix = f" [{snapshot}]" if snapshot else ""
    session.output.data(job, lambda: tables.job_line(job) + suffix)
