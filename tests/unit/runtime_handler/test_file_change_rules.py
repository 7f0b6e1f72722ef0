"""What is done about a file outside a snapshot, by its state at the dump and now."""

from __future__ import annotations

import os

import pytest

from cedana_sched.runtime_handler.file_change_rules import Action, FileState, OnChange, judge_file, printable_path
from cedana_sched.runtime_handler.outside_files import Holder, OutsideFile

READ, WRITE, APPEND = os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_APPEND
SAME = FileState(7, 100, 1000)
GREW = FileState(7, 150, 2000)
SHORTER = FileState(7, 60, 2000)
IN_PLACE = FileState(7, 100, 2000)
OTHER_GREW = FileState(8, 150, 2000)
OTHER_SHORTER = FileState(8, 60, 2000)
OTHER_EQUAL = FileState(8, 100, 2000)
COPIED = FileState(8, 100, 1000)
LEAVE, NOTE, REWIND, REFUSE, DECIDE = Action.LEAVE, Action.NOTE, Action.REWIND, Action.REFUSE, Action.DECIDE


def held(*flags: int, position: int = 100) -> OutsideFile:
    holders = tuple(Holder(5, f"fd/{number}", one, position) for number, one in enumerate(flags))
    return OutsideFile("/data/f", 1, 7, 100, 1000, holders)


@pytest.mark.parametrize(
    ("flags", "now", "on_rewind", "on_none", "on_others"),
    [
        ((WRITE,), SAME, LEAVE, LEAVE, LEAVE),
        ((WRITE,), COPIED, LEAVE, LEAVE, LEAVE),
        ((WRITE,), GREW, REWIND, REFUSE, DECIDE),
        ((WRITE,), SHORTER, REFUSE, REFUSE, DECIDE),
        ((WRITE,), IN_PLACE, NOTE, NOTE, DECIDE),
        ((WRITE,), OTHER_GREW, REFUSE, REFUSE, DECIDE),
        ((WRITE,), OTHER_SHORTER, REFUSE, REFUSE, DECIDE),
        ((WRITE,), OTHER_EQUAL, NOTE, NOTE, DECIDE),
        ((APPEND,), SAME, LEAVE, LEAVE, LEAVE),
        ((APPEND,), GREW, NOTE, NOTE, DECIDE),
        ((APPEND,), SHORTER, NOTE, NOTE, DECIDE),
        ((APPEND,), IN_PLACE, NOTE, NOTE, DECIDE),
        ((APPEND,), OTHER_GREW, NOTE, NOTE, DECIDE),
        ((APPEND,), OTHER_SHORTER, NOTE, NOTE, DECIDE),
        ((APPEND,), OTHER_EQUAL, NOTE, NOTE, DECIDE),
        ((READ,), SAME, LEAVE, LEAVE, LEAVE),
        ((READ,), GREW, LEAVE, LEAVE, LEAVE),
        ((READ,), IN_PLACE, LEAVE, LEAVE, LEAVE),
        ((READ,), OTHER_GREW, REFUSE, REFUSE, REFUSE),
        ((READ,), OTHER_EQUAL, LEAVE, LEAVE, LEAVE),
        ((READ,), SHORTER, REFUSE, REFUSE, REFUSE),
        ((READ | os.O_APPEND,), GREW, LEAVE, LEAVE, LEAVE),
        ((READ, APPEND), SHORTER, NOTE, NOTE, DECIDE),
        ((WRITE, APPEND), SHORTER, REFUSE, REFUSE, DECIDE),
        ((WRITE, APPEND), GREW, REFUSE, REFUSE, DECIDE),
        ((READ, WRITE), GREW, REWIND, REFUSE, DECIDE),
        ((os.O_RDWR | os.O_APPEND,), GREW, NOTE, NOTE, DECIDE),
    ],
)
def test_what_is_done_about_a_file(
    flags: tuple[int, ...], now: FileState, on_rewind: Action, on_none: Action, on_others: Action
) -> None:
    wanted = {
        OnChange.REWIND: on_rewind,
        OnChange.NONE: on_none,
        OnChange.COLD: on_others,
        OnChange.FAIL: on_others,
    }
    assert {on_change: judge_file(held(*flags), now, on_change).action for on_change in OnChange} == wanted


@pytest.mark.parametrize("position", [0, 99, 101])
def test_a_file_that_was_written_before_its_end_does_not_become_what_it_was_by_truncation(position: int) -> None:
    assert judge_file(held(WRITE, position=position), GREW, OnChange.REWIND).action is REFUSE


def test_a_file_that_is_mapped_for_writing_may_have_been_changed_anywhere() -> None:
    mapped = held(WRITE)._replace(holders=(Holder(5, "map_files/7f00", os.O_RDWR, 0),))
    assert judge_file(mapped, GREW, OnChange.REWIND).action is REFUSE


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (GREW, "/data/f has grown (100 bytes at the snapshot, 150 now)"),
        (SHORTER, "/data/f is shorter (100 bytes at the snapshot, 60 now)"),
        (IN_PLACE, "/data/f was changed in place (100 bytes as before)"),
        (OTHER_GREW, "/data/f is another file of that name (100 bytes at the snapshot, 150 now)"),
    ],
)
def test_the_change_is_described_with_file_and_sizes(now: FileState, text: str) -> None:
    assert judge_file(held(WRITE), now, OnChange.FAIL).text == text


def test_a_text_names_a_file_without_what_no_terminal_should_get() -> None:
    assert printable_path("/data/\x1b[2Ja\n\udcff") == "/data/?[2Ja??"
    assert len(printable_path("/" + "a" * 5000)) == 201
