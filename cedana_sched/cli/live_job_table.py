"""`ps --watch` on a terminal: a live table, updated from the engine's watch stream."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from cedana_sched.cli import job_tables
from cedana_sched.cli.output import Output, fit_to_width, rich_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from cedana_sched.local.client import EngineClient
    from cedana_sched.local.views import JobView


class _LiveJobsTable:
    """The current jobs as a rich renderable; rendered at each refresh, so that ages advance between changes."""

    def __init__(self, *, everything: bool) -> None:
        self._everything = everything
        self._jobs: dict[str, JobView] = {}

    def put(self, job: JobView) -> None:
        self._jobs[job.uid] = job

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        shown = [job for job in self._jobs.values() if self._everything or job.phase not in job_tables.ENDED]
        yield rich_table(fit_to_width(job_tables.jobs_table(shown, time.time()), options.max_width))


async def live_table(output: Output, client: EngineClient, *, everything: bool) -> None:
    """Show a live table of jobs until the engine stops or the user interrupts."""
    from rich.live import Live

    jobs = _LiveJobsTable(everything=everything)
    with Live(jobs, console=output.create_console(), refresh_per_second=4):
        async with aclosing(client.watch()) as changes:
            async for change in changes:
                if change.job is not None:
                    jobs.put(change.job)
