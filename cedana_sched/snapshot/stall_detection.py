"""Progress of a running CRIU: a hanging dump must not keep a job frozen until its deadline.

Progress is any of: bytes received from the stream, bytes that the store accepted, and the signs of
`runtime_handler.progress_signs`. Most have no notification, so they are polled a few times within the timeout. A store
that accepts nothing blocks CRIU as well; that is reported in other words, and has a longer timeout, because a store
retries by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, Protocol

from cedana_sched.model.errors import EVIDENCE_LINES
from cedana_sched.runtime_handler.progress_signs import LOOKS, STALL_SECONDS, ProgressSigns
from cedana_sched.snapshot.explain import last_lines

STORE_FACTOR = 2.0
"""Factor of the timeout for the store, whose client retries for up to 50 s."""


class StreamProgress(Protocol):
    """Counters of a stream's receiver."""

    @property
    def bytes_received(self) -> int: ...

    @property
    def bytes_stored(self) -> int: ...

    @property
    def waits_for_sink(self) -> bool: ...


class Stall(NamedTuple):
    """No progress for too long."""

    why: str
    evidence: tuple[str, ...]


class StallDetector:
    """Watches one CRIU. `find_stall` must be called every `check_interval_seconds` seconds."""

    def __init__(
        self,
        criu: int,
        log: Path,
        processes: Callable[[], Collection[int]],
        *,
        stream: StreamProgress | None = None,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._criu = criu
        self._log = log
        self._processes = processes
        self._stream = stream
        self._stall_seconds = stall_seconds
        self._signs = ProgressSigns(criu, str(log), processes)
        self._bytes = (0, 0)
        self._lived = time.monotonic()

    @property
    def check_interval_seconds(self) -> float:
        return self._stall_seconds / LOOKS

    def find_stall(self) -> Stall | None:
        """Check for progress; return a `Stall` if there was none for too long."""
        now = time.monotonic()
        signs = (self._has_streamed(), self._signs.has_progressed())
        if any(signs):
            self._lived = now
            return None
        is_stores_turn = self._stream is not None and self._stream.waits_for_sink
        bound = self._stall_seconds * (STORE_FACTOR if is_stores_turn else 1.0)
        if now - self._lived < bound:
            return None
        if is_stores_turn:
            why = f"the store took nothing of the snapshot for {bound:g} s; CRIU waits for it"
        else:
            why = f"CRIU made no progress for {bound:g} s"
        return Stall(why, self._evidence())

    def _has_streamed(self) -> bool:
        if self._stream is None:
            return False
        before, self._bytes = self._bytes, (self._stream.bytes_received, self._stream.bytes_stored)
        return self._bytes != before

    def _evidence(self) -> tuple[str, ...]:
        """Return CRIU's state and last log lines, and those of conspicuous processes."""
        log = last_lines(self._log)[-(EVIDENCE_LINES // 2) :]
        processes = [_describe_process(pid) for pid in list(self._processes())[: EVIDENCE_LINES // 2 - 1]]
        return (*processes, *log, "CRIU itself: " + _describe_process(self._criu))


def _describe_process(pid: int) -> str:
    folder = Path(f"/proc/{pid}")
    try:
        name, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        wchan = (folder / "wchan").read_text()
    except OSError:
        return f"process {pid} has ended"
    waits = f", in {wchan}" if wchan not in ("", "0") else ""
    return f"process {pid} ({name.partition('(')[2]}) in state {rest.split()[0]}{waits}"
