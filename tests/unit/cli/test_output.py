"""How data looks on a terminal and off it."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import threading
from pathlib import Path

import pytest

from cedana_sched.cli.output import Format, Output, Table, fit_to_width, plain_table
from cedana_sched.local.views import JobView

from .fake_engine import FakeEngine, a_job
from .test_console_script import SCRIPT


def on_a_terminal(*arguments: str, columns: int = 120, **environment: str) -> str:
    """What a person sees: the script on a pseudo-terminal of `columns`."""
    terminal, inside = pty.openpty()
    variables = os.environ | environment | {"COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen([SCRIPT, *arguments], env=variables, stdin=inside, stdout=inside, stderr=inside):
        os.close(inside)
        shown = b""
        try:
            while block := os.read(terminal, 1 << 16):
                shown += block
        except OSError:  # Linux says EIO where others say end of file
            pass
        finally:
            os.close(terminal)
    return shown.decode()


def test_columns_are_aligned_and_lines_end_without_blanks() -> None:
    table = Table(("A", "LONGER"), [("wide cell", ""), ("x", "y")])
    assert plain_table(table) == "A          LONGER\nwide cell\nx          y"


def test_a_narrow_terminal_leaves_out_what_is_dispensable() -> None:
    table = Table(("A", "B", "C"), [("aaaa", "bbbb", "cccc")], dispensable=("B", "A"))
    assert fit_to_width(table, 16).columns == ("A", "B", "C")
    assert fit_to_width(table, 15).rows == [("aaaa", "cccc")]
    assert fit_to_width(table, 9).columns == ("C",)
    assert fit_to_width(table, 1).columns == ("C",)


def test_a_terminal_gets_colours_unless_it_asks_for_none(engine: FakeEngine, tmp_path: Path) -> None:
    engine.jobs = {"1": a_job(uid="1")}
    directory = str(tmp_path)
    assert "\x1b[32mRunning" in on_a_terminal("--state-dir", directory, "ps")
    assert "\x1b[32m" not in on_a_terminal("--state-dir", directory, "ps", NO_COLOR="1")


def test_a_narrow_terminal_still_shows_every_job_on_one_line(engine: FakeEngine, tmp_path: Path) -> None:
    engine.jobs = {name: a_job(uid=name, name=name, why="waits") for name in ("one", "two")}
    shown = on_a_terminal("--state-dir", str(tmp_path), "ps", columns=80)
    assert len(shown.strip().splitlines()) == 3
    assert "MEMORY" not in shown


def test_watch_draws_a_table_that_changes_with_the_jobs(engine: FakeEngine, tmp_path: Path) -> None:
    engine.jobs = {"1": a_job(uid="1")}

    def change() -> None:
        engine.put(a_job(uid="1", phase="Suspended"))
        engine.hang_up()

    engine.on_watch = change
    shown = on_a_terminal("--state-dir", str(tmp_path), "ps", "--watch")
    assert "\x1b[33mSuspended" in shown
    assert shown.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_checkpoint_moves_a_bar_on_a_terminal(engine: FakeEngine, tmp_path: Path) -> None:
    running = a_job(checkpoint=None)
    engine.jobs = {running.uid: running}
    watched = threading.Event()
    engine.on_watch = watched.set

    def act(_: str, job: JobView) -> JobView:
        assert watched.wait(60)
        return a_job()

    engine.on_action = act
    shown = on_a_terminal("--state-dir", str(tmp_path), "checkpoint", "md", "--leave-running")
    assert "\x1b[?25l" in shown  # the cursor is hidden while the bar moves
    assert "md (4f6c1d2e) Running [default/md-run/0/main@1]" in shown


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _on_a_terminal(monkeypatch: pytest.MonkeyPatch, table: Table, format_: Format) -> list[str]:
    """The lines on a terminal of 40 columns."""
    terminal = _Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    Output(format_).print_result(None, lambda: table)
    return terminal.getvalue().splitlines()


def test_wide_output_breaks_no_cell_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(("A", "B", "C"), [("a" * 30, "b" * 30, "c" * 30)], dispensable=("C",))
    lines = _on_a_terminal(monkeypatch, table, Format.WIDE)
    assert (len(lines), lines[1].split()) == (2, ["a" * 30, "b" * 30, "c" * 30])


def test_long_table_is_plain_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would take ten seconds."""
    table = Table(("A", "B"), [("Running", "b" * 50)] * 10_000, dispensable=("B",))

    def refuse(_: Table) -> None:
        raise AssertionError("laid out")

    monkeypatch.setattr("cedana_sched.cli.output.rich_table", refuse)
    assert _on_a_terminal(monkeypatch, table, Format.TABLE) == ["A", *["Running"] * 10_000]
