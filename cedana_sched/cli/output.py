"""Output of commands: data to stdout as a table, JSON or YAML, everything else to stderr.

If stdout is not a terminal, tables are plain and never truncated, for scripts and `less`. Colour requires a terminal
and an unset `NO_COLOR`.
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
    """The output format of data."""

    TABLE = "table"
    WIDE = "wide"
    """A table with all columns, however narrow the terminal is."""
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True)
class Table:
    """Rows of text below upper-case column names; cells with a known phase or level are coloured on a terminal."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    empty: str = "nothing to show"
    """Note on stderr if the table has no rows."""
    dispensable: tuple[str, ...] = ()
    """Columns that a narrow terminal omits, in order."""


MOST_DRAWN_ROWS = 1_000
"""Longer tables are plain on a terminal, too: rich takes ten seconds and more for 10,000 rows."""

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
    """The output of one command, in the format of its options."""

    def __init__(self, format_: Format) -> None:
        self.format = format_

    @property
    def is_json(self) -> bool:
        return self.format is Format.JSON

    @property
    def is_data(self) -> bool:
        """Whether programs read the output, rather than persons."""
        return self.format in {Format.JSON, Format.YAML}

    @property
    def is_live_terminal(self) -> bool:
        """Whether stdout is a terminal that can show a live table."""
        return sys.stdout.isatty() and not self.is_data

    @property
    def shows_progress(self) -> bool:
        """Whether stderr can show progress bars."""
        return sys.stderr.isatty() and not self.is_data

    def print_result(self, value: Any, render: Callable[[], Table | str]) -> None:
        """Print a result: `value` as JSON or YAML, or the table or text of `render`."""
        if self.format is Format.YAML:
            print(_as_yaml(value), end="")
            return
        if self.is_json:
            print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
            return
        rendered = render()
        if isinstance(rendered, str):
            print(rendered)
        else:
            self._print_table(rendered)

    def print_record(self, value: Any, line: str) -> None:
        """Print one item of a stream: compact JSON on a line of its own, a YAML document, or `line`."""
        if self.format is Format.YAML:
            print(f"---\n{_as_yaml(value)}", end="", flush=True)
            return
        print(msgspec.json.encode(value).decode() if self.is_json else line, flush=True)

    def print_note(self, text: str) -> None:
        """Print a note for the user on stderr, unless the output is data."""
        if not self.is_data:
            print(text, file=sys.stderr, flush=True)

    def print_warning(self, text: str) -> None:
        """Print on stderr what a result lacks, whatever its format."""
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def print_error(self, error: CedanaSchedError) -> None:
        """Print an error: message, evidence, remedy; as data in the form of the engine's API."""
        if self.is_data:
            named = error.field if isinstance(error, UsageError) else None
            body = {
                "message": error.message,
                "remedy": error.remedy,
                "field": named,
                "kind": type(error).__name__,
                "evidence": error.evidence,
            }
            is_yaml = self.format is Format.YAML
            print(_as_yaml(body).rstrip() if is_yaml else msgspec.json.encode(body).decode(), file=sys.stderr)
            return
        print(f"error: {error.message}", file=sys.stderr)
        for line in error.evidence:
            print(f"  | {line}", file=sys.stderr)
        if error.remedy:
            print(f"remedy: {error.remedy}", file=sys.stderr)

    def create_console(self, *, stderr: bool = False, width: int | None = None) -> Console:
        """Return a rich console for live output on a terminal; `width` of None is the terminal's."""
        from rich.console import Console

        return Console(stderr=stderr, width=width, highlight=False, no_color="NO_COLOR" in os.environ or None)

    def _print_table(self, table: Table) -> None:
        if not table.rows:
            self.print_note(table.empty)
        elif not sys.stdout.isatty():
            print(plain_table(table))
        else:
            fitted = table if self.format is Format.WIDE else fit_to_width(table, self.create_console().width)
            if len(fitted.rows) > MOST_DRAWN_ROWS:
                print(plain_table(fitted))
            else:
                width = _width_of(fitted) if self.format is Format.WIDE else None
                self.create_console(width=width).print(rich_table(fitted))


def _as_yaml(value: Any) -> str:
    import yaml

    return yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True)


def fit_to_width(table: Table, width: int) -> Table:
    """Return the table without as many dispensable columns as necessary for `width` characters."""
    for name in table.dispensable:
        if _width_of(table) <= width:
            break
        left_out = table.columns.index(name)
        columns = _remove_cell(table.columns, left_out)
        table = replace(table, columns=columns, rows=[_remove_cell(row, left_out) for row in table.rows])
    return table


def _width_of(table: Table) -> int:
    return max(map(len, plain_table(table).splitlines()))


def _remove_cell(cells: tuple[str, ...], index: int) -> tuple[str, ...]:
    return cells[:index] + cells[index + 1 :]


def plain_table(table: Table) -> str:
    """Return the table as text, aligned by spaces, of any width."""
    lines: Sequence[tuple[str, ...]] = [table.columns, *table.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    aligned = (_GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in aligned)


def rich_table(table: Table) -> Any:
    """Return the table as a rich table for a terminal: cells wrap, and phases are coloured."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        drawn.add_column(column, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return drawn
