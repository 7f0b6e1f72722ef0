"""Detects a hung capture while no CRIU works: in its archives, and in its commit.

`snapshot.stall_detection` watches CRIU. Outside of CRIU a read of the workload's files, or a call of the store, may
hang where no thread can be woken. Then the process is ended like a killed one, and its agent cleans up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

QUIET_FACTOR = 4.0
"""Multiple of `stall_seconds` without progress: a bucket's client times out earlier, with a better error message."""
_LOOKS = 10


@contextlib.contextmanager
def watch_for_stall(
    signs: Callable[[], object], criu_is_at_work: Callable[[], bool], stall_seconds: float, end: Callable[[str], None]
) -> Iterator[None]:
    """Watch while the block runs.

    Args:
        signs: returns what has been read, stored and done; any change is progress.
        criu_is_at_work: returns whether another component watches at this moment.
        stall_seconds: see `QUIET_FACTOR`.
        end: called with the reason, once, from another thread.
    """
    bound = stall_seconds * QUIET_FACTOR

    def look(done: threading.Event) -> None:
        lived, before = time.monotonic(), signs()
        while not done.wait(bound / _LOOKS):
            now = signs()
            if now != before or criu_is_at_work():
                lived, before = time.monotonic(), now
            elif time.monotonic() - lived >= bound:
                end(f"nothing of the snapshot could be read or stored for {bound:g} s")
                return

    with run_in_background_thread(look, "signs of life"):
        yield


@contextlib.contextmanager
def run_in_background_thread(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work` in a thread of that name while the block runs; the event is set at the end of the block."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
