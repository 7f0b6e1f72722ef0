"""Packs concatenate chunks, so that a store has few large objects instead of many small ones.

One pack is filled at a time; while it is made durable the next is started. At most two are pending, which is the
backpressure on writers if the store is slower than they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from cedana_sched.store.backend import Backend, Buffer, Sink

TARGET_BYTES = 64 << 20
_FINISHING = 2


class PackWriter:
    """Appends payloads from several threads. `key_of` returns the key of the n-th pack."""

    def __init__(self, backend: Backend, key_of: Callable[[int], str], target_bytes: int = TARGET_BYTES) -> None:
        self._backend = backend
        self._key_of = key_of
        self._target = target_bytes
        self._lock = threading.Lock()
        self._sink: Sink | None = None
        self._filled = 0
        self._finishers = ThreadPoolExecutor(_FINISHING, thread_name_prefix="store-pack")
        self._waiting: list[Future[None]] = []
        self.count = 0
        """Number of packs started."""

    def append(self, payload: Buffer) -> tuple[int, int]:
        """Return the pack's number and the offset in it; blocks while the store is slower."""
        with self._lock:
            if self._sink is None:
                self._begin()
            offset = self._filled
            assert self._sink is not None  # noqa: S101 - begun above
            self._sink.write(payload)
            self._filled += len(payload)
            number = self.count - 1
            if self._filled >= self._target:
                self._hand_over()
            return number, offset

    def finish(self) -> None:
        """Wait until every pack is durable."""
        with self._lock:
            if self._sink is not None:
                self._hand_over()
            self._await(0)
        self._finishers.shutdown()

    def abort(self) -> None:
        """Discard unfinished packs; the caller must delete the finished ones."""
        self._finishers.shutdown(wait=True, cancel_futures=False)
        with self._lock:
            if self._sink is not None:
                self._sink.abort()
                self._sink = None

    def _begin(self) -> None:
        self._await(_FINISHING - 1)
        self._sink = self._backend.open_sink(self._key_of(self.count))
        self._filled = 0
        self.count += 1

    def _hand_over(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            self._waiting.append(self._finishers.submit(_finish, sink))

    def _await(self, at_most: int) -> None:
        """Wait until at most so many packs are unfinished; raises the error of a failed one."""
        while len(self._waiting) > at_most:
            self._waiting.pop(0).result()


def _finish(sink: Sink) -> None:
    try:
        sink.finish()
    except BaseException:
        sink.abort()
        raise
