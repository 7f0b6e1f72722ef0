"""A live table on a terminal, plain lines elsewhere, from the same board."""

import io

import pytest
from rich.console import Console

from cedana_sched.local.views import JobView
from demo.board import Board
from demo.screen import LiveScreen, Quota, quota_line, shown, snapshot_cells
from workloads.workload import Progress

BEGAN = 1_700_000_000.0
QUOTAS = {"bio": 1.0, "ml": 1.0}


def halfway(name: str) -> Progress | None:
    return Progress(2500, 5000, "steps") if name == "gromacs" else None


def test_without_a_terminal_every_moment_is_one_plain_line(story: list[JobView]) -> None:
    output, board = io.StringIO(), Board(BEGAN)
    with shown(Console(file=output, width=40), board, QUOTAS, halfway) as screen:
        for job in story:
            screen.tell(board.put(job, BEGAN + 20))
    lines = output.getvalue().splitlines()
    assert len(lines) == len(board.moments)
    assert "  +7.50s  gromacs    committed as bio/gromacs/0/main@1" in lines
    assert "\x1b" not in output.getvalue()


def test_on_a_terminal_the_table_shows_phase_progress_and_bytes(story: list[JobView]) -> None:
    board = Board(BEGAN)
    for job in story[:5]:
        board.put(job, BEGAN + 7)
    console = Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(LiveScreen(board, (Quota("bio", 1.0), Quota("ml", 1.0)), halfway))
    text = capture.get()
    for want in (
        "bio 2/1 cpus (borrows 1)",
        "Preempting",
        "2,500/5,000 steps",
        "10.0 MiB   0 B",
        "frozen: ",
    ):
        assert want in text


def test_live_drawing_ends_with_the_last_state(story: list[JobView]) -> None:
    output, board = io.StringIO(), Board(BEGAN)
    console = Console(file=output, width=160, force_terminal=True)
    with shown(console, board, QUOTAS, halfway) as screen:
        for job in story:
            screen.tell(board.put(job, BEGAN + 20))
    assert "Running → Succeeded" in output.getvalue()


def test_a_group_borrows_only_above_its_own_share(story: list[JobView]) -> None:
    board = Board(BEGAN)
    board.put(story[6], BEGAN)
    assert quota_line(board, (Quota("bio", 1.0), Quota("ml", 1.0))) == "bio 0/1 cpus   ml 1/1 cpus"


@pytest.mark.parametrize(
    ("index", "want"),
    [
        (0, ("-", "-", "-")),
        (3, ("Freezing", "-", "-")),
        (4, ("10.0 MiB", "0 B", "11.4 MiB/s")),
        (5, ("40.0 MiB", "10.0 MiB", "105 MiB/s")),
    ],
)
def test_bytes_and_rate_of_a_snapshot(story: list[JobView], index: int, want: tuple[str, str, str]) -> None:
    assert snapshot_cells(story[index].checkpoint, BEGAN + 8) == want
