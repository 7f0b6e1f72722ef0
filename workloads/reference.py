"""Run a workload without any interruption: the result that a preempted run is compared with."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from workloads.comparing import EVIDENCE_BYTES, tail
from workloads.workload import Size, Workload

OUTPUT_FILE = "output.log"


class RunError(Exception):
    """A workload ended badly; `evidence` holds the last lines that it printed."""

    def __init__(self, workload: str, status: int, evidence: str) -> None:
        super().__init__(f"{workload} ended with status {status}")
        self.status = status
        self.evidence = tuple(evidence.splitlines())


@dataclass(frozen=True)
class UninterruptedRun:
    """Where an uninterrupted run left its results, and how long it took, in seconds."""

    directory: Path
    seconds: float


def run_uninterrupted(workload: Workload, directory: Path, size: Size) -> UninterruptedRun:
    """Prepare and run a workload from its beginning to its end; what it prints goes to `output.log` beside its results.

    Raises:
        RunError: when it exits with another status than 0.
    """
    workload.prepare(directory, size)
    command = workload.command(directory)
    started = time.monotonic()
    with (directory / OUTPUT_FILE).open("wb") as output:
        status = subprocess.run(
            command.argv,
            cwd=command.directory,
            env=os.environ | command.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    if status:
        raise RunError(workload.name, status, tail(directory / OUTPUT_FILE, EVIDENCE_BYTES))
    return UninterruptedRun(directory, time.monotonic() - started)
