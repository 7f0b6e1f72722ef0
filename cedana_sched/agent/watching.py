"""Whether a capture gets anywhere where no CRIU is at work: in its archives, and in its commit.

CRIU is watched by `snapshot.progress`. Beside it a read of the workload's files, or a call of the store, may hang, in a
place where no thread can be woken. The process is ended then, as a killed one, and its agent undoes what it has left.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

QUIET_FACTOR = 4.0
"""A silence may last so many times `stall_seconds`: a bucket's client gives up by itself earlier, with better words."""
_LOOKS = 10


@contextlib.contextmanager
def ended_when_quiet(
    signs: Callable[[], object], criu_is_at_work: Callable[[], bool], stall_seconds: float, end: Callable[[str], None]
) -> Iterator[None]:
    """Look on while the block runs.

    Args:
        signs: what has been read, stored and done; any change is a sign of life.
        criu_is_at_work: whether nothing needs to be looked at now.
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

    with beside(look, "signs of life"):
        yield


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Do `work` in a thread of that name while the block runs; the event is set when the block is over."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
