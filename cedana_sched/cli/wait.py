"""`cedana-sched wait`: wait until a job has ended, or is in a phase."""

from __future__ import annotations

from typing import Annotated

import typer

from cedana_sched.cli import arguments, job_tables, units
from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.model.errors import UsageError

PHASES = ("Queued", "Starting", "Running", "Preempting", "Suspended", "Succeeded", "Failed", "Cancelled")


def register(app: typer.Typer) -> None:
    command(app)(wait)


async def wait(
    session: CommandContext,
    job: arguments.Job,
    *,
    phase: Annotated[
        str | None, typer.Option("--for", metavar="PHASE", help=f"Wait for a phase: {', '.join(PHASES)}.")
    ] = None,
    timeout: arguments.Timeout = None,
) -> None:
    """Wait until a job has ended. Exit code 1 when it did not succeed, 5 when the time is over."""
    from cedana_sched.cli.job_watch import PhaseReporter, job_failed_error, wait_for_end, wait_until

    wanted = canonical_phase(phase) if phase else None
    patience = units.parse_duration("timeout", timeout) if timeout else None
    async with session.client() as client:
        found = await client.job(job)
        if wanted is None:
            found = await wait_for_end(client, found, session.output, patience)
        else:
            found = await wait_until(
                client,
                found,
                lambda now: now.phase == wanted or now.phase in job_tables.ENDED,
                timeout=patience,
                on_change=PhaseReporter(session.output),
            )
            if found.phase != wanted:  # ended before it reached the phase
                raise job_failed_error(found)
    session.output.print_result(found, lambda: job_tables.job_line(found))


def canonical_phase(text: str) -> str:
    """Return a phase in the engine's spelling.

    Raises:
        UsageError: there is no such phase.
    """
    for phase in PHASES:
        if phase.lower() == text.lower():
            return phase
    raise UsageError("for", text, "is no phase", remedy=f"use one of {', '.join(PHASES)}")
