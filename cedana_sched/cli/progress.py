"""Progress of a checkpoint or of a long read of the store: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from cedana_sched.cli import job_tables
from cedana_sched.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress

    from cedana_sched.local.client import EngineClient
    from cedana_sched.local.views import CheckpointView, JobView

Show = Callable[["CheckpointView"], None]


@asynccontextmanager
async def checkpoint_progress(client: EngineClient, job: JobView, output: Output) -> AsyncIterator[None]:
    """While the body runs, show each step of the checkpoint that the body requests of `job`."""
    with _show_bar(output, job.name) if output.shows_progress else _show_lines(output, job.name) as show:
        task = asyncio.create_task(_follow_checkpoint(client, job, show), name=f"progress of {job.uid}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()):
                output.print_note(f"progress could not be shown: {error}")


async def _follow_checkpoint(client: EngineClient, job: JobView, show: Show) -> None:
    old = job.checkpoint.uid if job.checkpoint else None
    async with aclosing(client.watch()) as changes:
        async for change in changes:
            current = change.job.checkpoint if change.job and change.job.uid == job.uid else None
            if current is not None and current.uid != old:
                show(current)


@contextmanager
def _show_lines(output: Output, name: str) -> Iterator[Show]:
    last = ""

    def show(checkpoint: CheckpointView) -> None:
        nonlocal last
        if checkpoint.step != last:
            last = checkpoint.step
            output.print_note(f"{name}: {job_tables.progress_text(checkpoint)}")

    yield show


@contextmanager
def _show_bar(output: Output, name: str) -> Iterator[Show]:
    with _transfer_bar(output) as progress:
        # the bar has no total, because CRIU does not announce the size of a dump
        task = progress.add_task(name, total=None)

        def show(checkpoint: CheckpointView) -> None:
            progress.update(task, description=f"{name} {checkpoint.step}", completed=checkpoint.read_bytes)

        yield show


@contextmanager
def counted_progress(output: Output, name: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a long read; yields a thread-safe callback for bytes done and bytes in total."""
    if not output.shows_progress:
        yield lambda *_: None
        return
    with _transfer_bar(output) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _transfer_bar(output: Output) -> Progress:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    return Progress(*columns, console=output.create_console(stderr=True), transient=True)
