"""Waits for a job on the engine's watch stream, without polling, and reports its phases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from cedana_sched.cli import job_tables, units
from cedana_sched.cli.errors import JobFailedError, WaitTimedOutError
from cedana_sched.cli.output import Output

if TYPE_CHECKING:
    from cedana_sched.local.client import EngineClient
    from cedana_sched.local.views import JobView


async def wait_until(
    client: EngineClient,
    job: JobView,
    reached: Callable[[JobView], bool],
    *,
    timeout: float | None = None,
    on_change: Callable[[JobView], None] = lambda _: None,
) -> JobView:
    """Wait until `reached` is true of the job, and return the job; `on_change` is called with every earlier change.

    Raises:
        WaitTimedOutError: after `timeout` seconds; None waits forever.
        EngineUnreachableError: the engine stopped.
    """
    last = job
    try:
        async with asyncio.timeout(timeout), aclosing(client.watch()) as changes:
            async for change in changes:
                if change.job is None or change.job.uid != job.uid:
                    continue
                last = change.job
                if reached(last):
                    return last
                on_change(last)
    except TimeoutError as error:
        raise WaitTimedOutError(
            f"job {job.name} is {last.phase} after {units.format_duration(timeout)}",
            remedy=f"it continues; wait again with 'cedana-sched wait {job.uid}'",
        ) from error
    raise _engine_stopped_error(job)


async def wait_for_end(client: EngineClient, job: JobView, output: Output, timeout: float | None) -> JobView:
    """Wait until the job has ended, reporting its phases on stderr.

    Raises:
        JobFailedError: the job did not succeed.
    """
    ended = await wait_until(
        client, job, lambda now: now.phase in job_tables.ENDED, timeout=timeout, on_change=PhaseReporter(output)
    )
    if ended.phase != "Succeeded":
        raise job_failed_error(ended)
    return ended


def job_failed_error(job: JobView) -> JobFailedError:
    """Return the error for a wait on a job that did not succeed."""
    how = job.why or (f"signal {job.signal}" if job.signal else f"exit code {job.exit_code}")
    remedy = f"see 'cedana-sched logs {job.uid}' and 'cedana-sched describe {job.uid}'"
    return JobFailedError(f"job {job.name} ended as {job.phase}: {how}", remedy=remedy)


class PhaseReporter:
    """A callback that prints a line on stderr whenever a job's phase or reason changes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last: tuple[str, str] | None = None

    def __call__(self, job: JobView) -> None:
        state = (job.phase, job.why)
        if state != self._last:
            self._last = state
            self._output.print_note(job_tables.job_line(job))


def _engine_stopped_error(job: JobView) -> Exception:
    from cedana_sched.local.client import EngineUnreachableError

    return EngineUnreachableError(
        f"the engine stopped while job {job.name} was waited for",
        remedy="start it again with 'cedana-sched engine run': it has the job's record and continues it",
    )
