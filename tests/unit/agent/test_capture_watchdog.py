"""A capture that nothing moves is ended, and only then."""

from __future__ import annotations

import threading
import time

import pytest

from cedana_sched.agent.capture_watchdog import QUIET_FACTOR, watch_for_stall

STALL = 0.1
BOUND = STALL * QUIET_FACTOR


def test_silence_is_ended_once_and_said() -> None:
    said: list[str] = []
    ended = threading.Event()

    def end(why: str) -> None:
        said.append(why)
        ended.set()

    with watch_for_stall(lambda: 1, lambda: False, STALL, end):
        assert ended.wait(60)
    assert said == ["nothing of the snapshot could be read or stored for 0.4 s"]


@pytest.mark.parametrize(("moves", "criu"), [(True, False), (False, True)])
def test_what_moves_or_is_watched_elsewhere_is_not(moves: bool, criu: bool) -> None:
    said: list[str] = []
    looks = iter(range(1_000_000))
    seen = threading.Event()

    def signs() -> int:
        number = next(looks)
        if number > 40:  # four times as long as would be allowed
            seen.set()
        return number if moves else 0

    with watch_for_stall(signs, lambda: criu, STALL, said.append):
        assert seen.wait(60)
    assert said == []


def test_whoever_is_done_leaves_no_watch() -> None:
    began = time.monotonic()
    with watch_for_stall(lambda: 1, lambda: False, 60.0, lambda _: None):
        pass
    assert time.monotonic() - began < 5
    assert "signs of life" not in {thread.name for thread in threading.enumerate()}
