"""Whether a CRIU that works gets anywhere: a dump that hangs must not hold a frozen job until its deadline.

A sign of life is any of: bytes that came through the stream, bytes that the store took, and whatever `runtime.signs`
counts as one. Nothing announces most of these, so they are looked at a few times within the time allowed. A store that
takes nothing holds CRIU back as well; that is said in other words, and given more time, because a store tries again by
itself.

Called by `dump` and `restore` while they wait for CRIU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, Protocol

from cedana_sched.model.errors import EVIDENCE_LINES
from cedana_sched.runtime.signs import LOOKS, STALL_SECONDS, Signs
from cedana_sched.snapshot.explain import last_lines

STORE_FACTOR = 2.0
"""A store may take so many times longer: its client waits, and tries again, for up to 50 s."""


class Stream(Protocol):
    """What the receiver of a stream tells."""

    @property
    def bytes_received(self) -> int: ...

    @property
    def bytes_stored(self) -> int: ...

    @property
    def waits_for_sink(self) -> bool: ...


class Stall(NamedTuple):
    """Nothing has happened for too long."""

    why: str
    evidence: tuple[str, ...]


class Progress:
    """Watches one CRIU. `look` is called every `interval` seconds."""

    def __init__(
        self,
        criu: int,
        log: Path,
        processes: Callable[[], Collection[int]],
        *,
        stream: Stream | None = None,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._criu = criu
        self._log = log
        self._processes = processes
        self._stream = stream
        self._stall_seconds = stall_seconds
        self._signs = Signs(criu, str(log), processes)
        self._bytes = (0, 0)
        self._lived = time.monotonic()

    @property
    def interval(self) -> float:
        return self._stall_seconds / LOOKS

    def look(self) -> Stall | None:
        """Look for signs of life; a `Stall` when there has been none for too long."""
        now = time.monotonic()
        signs = (self._has_streamed(), self._signs.look())
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
        """CRIU's state and its last words, and those of the processes that stand out."""
        log = last_lines(self._log)[-(EVIDENCE_LINES // 2) :]
        processes = [_describe(pid) for pid in list(self._processes())[: EVIDENCE_LINES // 2 - 1]]
        return (*processes, *log, "CRIU itself: " + _describe(self._criu))


def _describe(pid: int) -> str:
    folder = Path(f"/proc/{pid}")
    try:
        name, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        wchan = (folder / "wchan").read_text()
    except OSError:
        return f"process {pid} has ended"
    waits = f", in {wchan}" if wchan not in ("", "0") else ""
    return f"process {pid} ({name.partition('(')[2]}) in state {rest.split()[0]}{waits}"
