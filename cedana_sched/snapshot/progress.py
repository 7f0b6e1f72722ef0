"""Whether a CRIU that works gets anywhere: a dump that hangs must not hold a frozen job until its deadline.

A sign of life is any of: bytes that came through the stream, bytes that the store took, a line in CRIU's log that was
not there a moment ago (CRIU repeats itself where it tries again), a core that CRIU or a process of the tree keeps
busy, much that they read or write, a process that changes its state. Nothing announces most of these, so they are
looked at a few times within the time allowed. A store that takes nothing holds CRIU back as well; that is said in
other words, and given more time, because a store tries again by itself.

Called by `dump` and `restore` while they wait for CRIU.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from cedana_sched.model.errors import EVIDENCE_LINES
from cedana_sched.snapshot.explain import last_lines

STALL_SECONDS = 30.0
"""So long CRIU may go without a sign of life, whatever the policy allows the whole."""
STORE_FACTOR = 2.0
"""A store may take so many times longer: its client waits, and tries again, for up to 50 s."""
LOOKS = 10
"""How often in that time somebody looks."""

_BUSY = 0.2  # of a core: a loop that waits and tries again uses less
_MUCH_BYTES = 1 << 20  # such a loop reads a few files
_LINES_KNOWN = 1000
_STAMP = re.compile(rb"^\(\d+\.\d+\)\s*")
_TICKS = os.sysconf("SC_CLK_TCK")


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
        self._lines: deque[bytes] = deque(maxlen=_LINES_KNOWN)
        self._read = 0
        self._bytes = (0, 0)
        self._states: dict[int, str] = {}
        self._ticks: dict[int, int] = {}
        self._moved: dict[int, int] = {}
        self._looked = self._lived = time.monotonic()

    @property
    def interval(self) -> float:
        return self._stall_seconds / LOOKS

    def look(self) -> Stall | None:
        """Look for signs of life; a `Stall` when there has been none for too long."""
        now = time.monotonic()
        signs = (
            self._has_streamed(),
            self._has_said_something(),
            self._has_worked(now - self._looked),
            self._has_moved_bytes(),
        )
        self._looked = now
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

    def _has_said_something(self) -> bool:
        try:
            with self._log.open("rb") as log:
                log.seek(self._read)
                said = log.read()
        except FileNotFoundError:
            return False
        self._read += len(said)
        lines = {_STAMP.sub(b"", line) for line in said.splitlines()}
        new = lines.difference(self._lines)
        self._lines.extend(new)
        return bool(new)

    def _has_worked(self, seconds: float) -> bool:
        states, ticks = {}, {}
        for pid in {self._criu, *self._processes()}:
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                states[pid] = fields[0]
                ticks[pid] = sum(map(int, fields[11:15]))  # its own and its children's, user and system
        used = sum(spent - self._ticks.get(pid, spent) for pid, spent in ticks.items())
        has_changed = {pid: state for pid, state in states.items() if pid != self._criu} != self._states
        self._ticks = ticks
        self._states = {pid: state for pid, state in states.items() if pid != self._criu}
        return has_changed or used > _BUSY * seconds * _TICKS

    def _has_moved_bytes(self) -> bool:
        """Memory that is restored from slow storage keeps no core busy, and is no line in the log."""
        moved = {}
        for pid in {self._criu, *self._processes()}:
            with suppress(OSError):  # it has ended
                lines = Path(f"/proc/{pid}/io").read_text().splitlines()
                moved[pid] = sum(int(line.split()[1]) for line in lines[:2])  # rchar, wchar
        since = sum(count - self._moved.get(pid, count) for pid, count in moved.items())
        self._moved = moved
        return since > _MUCH_BYTES

    def _evidence(self) -> tuple[str, ...]:
        """CRIU's state and its last words, and those of the processes that stand out."""
        log = last_lines(self._log)[-(EVIDENCE_LINES // 2) :]
        processes = [_describe(pid) for pid in list(self._processes())[: EVIDENCE_LINES // 2 - 1]]
        return (*processes, *log, "CRIU itself: " + _describe(self._criu))


def _describe(pid: int) -> str:
    folder = Path(f"/proc/{pid}")
    try:
        name, _, rest = (folder / "stat").read_text().rpartition(")")
        wchan = (folder / "wchan").read_text()
    except OSError:
        return f"process {pid} has ended"
    waits = f", in {wchan}" if wchan not in ("", "0") else ""
    return f"process {pid} ({name.partition('(')[2]}) in state {rest.split()[0]}{waits}"
