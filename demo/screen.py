"""Rendering of the board: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cedana_sched.cli import units
from cedana_sched.local.views import CheckpointView
from demo.board import Board, Moment
from workloads.workload import Progress

REFRESH_PER_SECOND = 8
_MOMENTS_SHOWN = 10
_BAR_WIDTH = 16
_STYLES = {"Running": "green", "Succeeded": "bold green", "Preempting": "yellow", "Failed": "red", "Queued": "cyan"}

ProgressOf = Callable[[str], Progress | None]
"""Returns the progress of a job by name; None if unknown."""


@dataclass(frozen=True)
class Quota:
    """A group's nominal quota, in processors."""

    name: str
    nominal_cpus: float


class Screen(Protocol):
    """A renderer of new moments."""

    def tell(self, moments: list[Moment]) -> None: ...


class LiveScreen:
    """A live table, refreshed by rich several times a second, so that progress and rates advance between events."""

    def __init__(self, board: Board, groups: tuple[Quota, ...], progress_of: ProgressOf) -> None:
        self._board = board
        self._groups = groups
        self._progress_of = progress_of

    def tell(self, moments: list[Moment]) -> None:
        """Do nothing: the next refresh renders the moments from the board."""

    def __rich__(self) -> RenderableType:
        now = time.time()
        header = Text(f"{now - self._board.began:5.1f}s   {quota_line(self._board, self._groups)}", style="bold")
        return Group(header, self._jobs(now), self._moments())

    def _jobs(self, now: float) -> Table:
        table = Table(expand=False, header_style="dim", box=None, pad_edge=False)
        for column in ("GROUP", "JOB", "PHASE", "PROGRESS", "", "READ", "STORED", "RATE"):
            table.add_column(column, no_wrap=True, justify="right" if column == "" else "left")
        for job in self._board.jobs.values():
            progress = self._progress_of(job.name)
            bar = ProgressBar(total=1.0, completed=progress.fraction if progress else 0, width=_BAR_WIDTH)
            phase = Text(f"{job.phase:<10}", style=_STYLES.get(job.phase, ""))
            cells = (f"{cell:<9}" for cell in snapshot_cells(job.checkpoint, now))
            table.add_row(job.group, job.name, phase, bar, progress_text(progress), *cells)
        return table

    def _moments(self) -> Text:
        shown = self._board.moments[-_MOMENTS_SHOWN:]
        lines = "\n".join(["", *(moment_line(moment, self._board.began) for moment in shown)])
        return Text(lines, no_wrap=True, overflow="ellipsis")


class PlainScreen:
    """One plain line for each moment."""

    def __init__(self, board: Board, write: Callable[[str], None]) -> None:
        self._board = board
        self._write = write

    def tell(self, moments: list[Moment]) -> None:
        for moment in moments:
            self._write(moment_line(moment, self._board.began))


@contextmanager
def shown(console: Console, board: Board, groups: Mapping[str, float], progress_of: ProgressOf) -> Iterator[Screen]:
    """Show the board inside the block; the last rendering stays on the terminal."""
    if not console.is_terminal:
        yield PlainScreen(board, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        return
    quotas = tuple(Quota(name, cpus) for name, cpus in groups.items())
    screen = LiveScreen(board, quotas, progress_of)
    with Live(screen, console=console, refresh_per_second=REFRESH_PER_SECOND):
        yield screen


def quota_line(board: Board, groups: tuple[Quota, ...]) -> str:
    """Format each group's usage, quota and borrowing: `bio 2/1 cpus (borrows 1)   ml 0/1 cpus`."""
    parts = []
    for group in groups:
        used = board.used_cpus(group.name)
        borrowed = used - group.nominal_cpus
        note = f" (borrows {borrowed:g})" if borrowed > 0 else ""
        parts.append(f"{group.name} {used:g}/{group.nominal_cpus:g} cpus{note}")
    return "   ".join(parts)


def moment_line(moment: Moment, began: float) -> str:
    return f"{moment.at - began:+7.2f}s  {moment.job:<10} {moment.text}"


def progress_text(progress: Progress | None) -> str:
    return f"{progress.done:,}/{progress.total:,} {progress.unit}" if progress else units.ABSENT


def snapshot_cells(checkpoint: CheckpointView | None, now: float) -> tuple[str, str, str]:
    """Format the bytes that the newest snapshot has read and stored, and its read rate."""
    if checkpoint is None or not checkpoint.read_bytes:
        return (checkpoint.step if checkpoint else units.ABSENT), units.ABSENT, units.ABSENT
    began = checkpoint.frozen_at or checkpoint.created_at
    rate = units.format_rate(checkpoint.read_bytes, (checkpoint.committed_at or now) - began)
    return units.format_size(checkpoint.read_bytes), units.format_size(checkpoint.stored_bytes), rate
