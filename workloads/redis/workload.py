"""Redis under load: every increment that a client saw acknowledged was counted, and counted once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

from workloads.comparing import tail
from workloads.packages import Packages
from workloads.sequences import sequence_faults
from workloads.workload import Command, Progress, Size, Workload, size_of

_PROGRAM = Path(__file__).parent / "program.py"
_CLIENTS = 4
_NUMBERS = {Size.BRIEF: 150, Size.TEST: 750, Size.DEMO: 4000}
_TAIL_BYTES = 64


class Redis(Workload):
    """Four clients over loopback TCP; the server writes its append-only file."""

    name = "redis"
    title = "Redis under load"
    seconds: ClassVar = {Size.BRIEF: 1, Size.TEST: 4, Size.DEMO: 20}
    packages = Packages(debian=("redis-server",))

    def write_inputs(self, directory: Path, size: Size) -> None:
        """Write nothing: the database begins empty."""

    def command(self, directory: Path) -> Command:
        return Command((sys.executable, str(_PROGRAM), str(_CLIENTS), str(_NUMBERS[size_of(directory)])), directory)

    def progress(self, directory: Path) -> Progress:
        lines = tail(directory / "acknowledged-0.log", _TAIL_BYTES).splitlines()
        total = _CLIENTS * _NUMBERS[size_of(directory)]
        finished = (directory / "stored.json").exists()
        return Progress(total if finished else int(lines[-1]) if lines else 0, total, "increments")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """All acknowledged counts together are 1 to the total, each once; the server holds the total and every list."""
        numbers = _NUMBERS[size_of(reference)]
        total = _CLIENTS * numbers
        logs = [directory / f"acknowledged-{index}.log" for index in range(_CLIENTS)]
        counts = sorted(int(line) for log in logs if log.exists() for line in log.read_text().splitlines())
        faults = sequence_faults("acknowledged increments", counts, total)
        path = directory / "stored.json"
        stored = json.loads(path.read_text()) if path.exists() else {}
        for index in range(_CLIENTS):
            ledger = [int(number) for number in stored.get(f"ledger-{index}", [])]
            faults += sequence_faults(f"ledger of client {index}", ledger, numbers)
        if stored.get("counter") != str(total):
            faults.append(f"the counter is {stored.get('counter')} instead of {total}")
        return faults
