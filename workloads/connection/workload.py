"""Two processes with bytes under way between them: every record arrives once, in order and undamaged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar, Literal

from workloads.comparing import differences, tail
from workloads.sequences import sequence_faults
from workloads.workload import Command, Progress, Size, Workload, size_of

_PROGRAM = Path(__file__).parent / "program.py"
_RECORDS = {Size.BRIEF: 250, Size.TEST: 2000, Size.DEMO: 6000}
_TAIL_BYTES = 64

Transport = Literal["tcp", "unix", "pipe"]
_TITLES: dict[Transport, str] = {
    "tcp": "two processes over loopback TCP",
    "unix": "two processes over a unix socket",
    "pipe": "two processes through pipes",
}


class Connection(Workload):
    """A sender and a receiver; up to 32 KiB are always under way."""

    seconds: ClassVar = {Size.BRIEF: 1, Size.TEST: 6, Size.DEMO: 20}

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.name = transport
        self.title = _TITLES[transport]

    def write_inputs(self, directory: Path, size: Size) -> None:
        """Write nothing: every record follows from its number."""

    def command(self, directory: Path) -> Command:
        records = str(_RECORDS[size_of(directory)])
        return Command((sys.executable, str(_PROGRAM), self._transport, records), directory)

    def progress(self, directory: Path) -> Progress:
        lines = tail(directory / "answered.log", _TAIL_BYTES).splitlines()
        return Progress(int(lines[-1]) if lines else 0, _RECORDS[size_of(directory)], "records")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """Both logs count without gap or repetition, and what came is what an uninterrupted run sends."""
        faults = differences(directory, reference, ("sent.digest", "received.digest"))
        total = _RECORDS[size_of(reference)]
        for name in ("received.log", "answered.log"):
            path = directory / name
            lines = path.read_text().splitlines() if path.exists() else []
            faults += sequence_faults(name, [int(line) for line in lines], total)
        return faults
