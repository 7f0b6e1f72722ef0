"""Where a command writes: data to stdout as a table or JSON, everything else to stderr.

A table is aligned plainly where stdout is no terminal, so that scripts and `less` see every character. Colour
needs a terminal and an absent `NO_COLOR`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from cedana_sched.model.errors import CedanaSchedError, UsageError

if TYPE_CHECKING:
    from rich.console import Console


class Format(StrEnum):
    """How data is printed."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True)
class Table:
    """Rows of text below upper-case column names; the cells of the column `PHASE` get a colour on a terminal."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    empty: str = "nothing to show"
    """Said on stderr when there is no row."""
    dispensable: tuple[str, ...] = ()
    """Columns that a narrow terminal leaves out, the first one first."""


_STYLES = {
    "Running": "green",
    "Succeeded": "green",
    "Ready": "green",
    "ok": "green",
    "Preempting": "yellow",
    "Suspended": "yellow",
    "warn": "yellow",
    "Failed": "red",
    "Cancelled": "red",
    "fail": "red",
}
_GAP = "  "


class Output:
    """One command's output in the format that its user asked for."""

    def __init__(self, format_: Format) -> None:
        self.format = format_

    @property
    def is_json(self) -> bool:
        return self.format is Format.JSON

    @property
    def moves(self) -> bool:
        """Whether stdout is a terminal on which a table may move."""
        return sys.stdout.isatty() and not self.is_json

    @property
    def shows_progress(self) -> bool:
        """Whether bars may move on stderr."""
        return sys.stderr.isatty() and not self.is_json

    def data(self, value: Any, render: Callable[[], Table | str]) -> None:
        """Print a result: `value` as JSON, or what `render` makes of it."""
        if self.is_json:
            print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
            return
        rendered = render()
        if isinstance(rendered, str):
            print(rendered)
        else:
            self._table(rendered)

    def record(self, value: Any, line: str) -> None:
        """Print one item of an endless stream: compact JSON on a line of its own, or `line`."""
        print(msgspec.json.encode(value).decode() if self.is_json else line, flush=True)

    def note(self, text: str) -> None:
        """Tell a person what goes on; scripts that read stdout do not see it."""
        if not self.is_json:
            print(text, file=sys.stderr, flush=True)

    def problem(self, error: CedanaSchedError) -> None:
        """Print an error: sentence, remedy, evidence; as JSON in the shape that the engine's API uses."""
        if self.is_json:
            named = error.field if isinstance(error, UsageError) else None
            body = {
                "message": error.message,
                "remedy": error.remedy,
                "field": named,
                "kind": type(error).__name__,
                "evidence": error.evidence,
            }
            print(msgspec.json.encode(body).decode(), file=sys.stderr)
            return
        print(f"error: {error.message}", file=sys.stderr)
        for line in error.evidence:
            print(f"  | {line}", file=sys.stderr)
        if error.remedy:
            print(f"remedy: {error.remedy}", file=sys.stderr)

    def console(self, *, stderr: bool = False) -> Console:
        """A rich console for what moves on a terminal."""
        from rich.console import Console

        return Console(stderr=stderr, highlight=False, no_color="NO_COLOR" in os.environ or None)

    def _table(self, table: Table) -> None:
        if not table.rows:
            self.note(table.empty)
        elif sys.stdout.isatty():
            console = self.console()
            console.print(rich_table(fitted(table, console.width)))
        else:
            print(plain_table(table))


def fitted(table: Table, width: int) -> Table:
    """The table without as many of its dispensable columns as `width` characters demand."""
    for name in table.dispensable:
        if len(max(plain_table(table).splitlines(), key=len)) <= width:
            break
        left_out = table.columns.index(name)
        columns = _without(table.columns, left_out)
        table = replace(table, columns=columns, rows=[_without(row, left_out) for row in table.rows])
    return table


def _without(cells: tuple[str, ...], index: int) -> tuple[str, ...]:
    return cells[:index] + cells[index + 1 :]


def plain_table(table: Table) -> str:
    """Columns aligned by spaces, no matter how wide."""
    lines: Sequence[tuple[str, ...]] = [table.columns, *table.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    aligned = (_GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in aligned)


def rich_table(table: Table) -> Any:
    """The same for a terminal: cells wrap, phases have their colour."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        drawn.add_column(column, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return drawn
