"""The board says each thing once, in the order in which it happened."""

import msgspec
import pytest

from cedana_sched.local.views import JobView
from demo.board import Board

BEGAN = 1_700_000_000.0


@pytest.fixture
def board(story: list[JobView]) -> Board:
    board = Board(BEGAN)
    for number, job in enumerate(story):
        board.put(job, BEGAN + number)
    return board


def test_the_moments_of_a_preemption_are_told_once_each(board: Board) -> None:
    texts = [moment.text for moment in board.moments if moment.job == "gromacs"]
    assert [text for text in texts if "→" not in text] == [
        "Queued",
        "notice: Reclaimed, for xgboost",
        "frozen: it executes nothing any more",
        "committed as bio/gromacs/0/main@1",
        "runs again, in new processes, from bio/gromacs/0/main@1",
    ]


def test_a_moment_bears_the_time_that_the_engine_says(board: Board) -> None:
    committed = next(moment for moment in board.moments if moment.text.startswith("committed"))
    assert committed.at == BEGAN + 7.5


def test_an_unchanged_job_is_no_news(board: Board, story: list[JobView]) -> None:
    assert board.put(story[-1], BEGAN + 99) == []


def test_failures_are_told_with_their_cause(story: list[JobView]) -> None:
    board = Board(BEGAN)
    checkpoint = story[3].checkpoint
    assert checkpoint is not None
    board.put(story[3], BEGAN)
    failed = msgspec.structs.replace(checkpoint, failure="the store is full")
    news = board.put(msgspec.structs.replace(story[3], checkpoint=failed), BEGAN + 1)
    assert [moment.text for moment in news] == ["checkpoint failed: the store is full"]


def test_quota_is_held_until_the_job_is_suspended(story: list[JobView]) -> None:
    board = Board(BEGAN)
    used = []
    for job in story:
        board.put(job, BEGAN)
        used.append((board.used_cpus("bio"), board.used_cpus("ml")))
    assert used == [(0, 0), (2, 0), (2, 0), (2, 0), (2, 0), (0, 0), (0, 1), (0, 0), (2, 0), (2, 0), (0, 0)]


def test_it_is_settled_when_every_job_has_ended(board: Board, story: list[JobView]) -> None:
    assert board.is_terminal
    assert not Board(BEGAN).is_terminal
    board.put(story[1], BEGAN)
    assert not board.is_terminal
