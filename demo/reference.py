"""The reference run: the same input without interruption, outside the engine."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from workloads.comparing import EVIDENCE_BYTES, tail
from workloads.reference import OUTPUT_FILE, RunError
from workloads.workload import Workload


async def run_reference(workload: Workload, directory: Path) -> float:
    """Run the workload prepared in `directory` to completion; return its duration in seconds.

    Cancellation kills the program.

    Raises:
        RunError: the program's exit status is not 0.
    """
    command = workload.command(directory)
    began = time.monotonic()
    with (directory / OUTPUT_FILE).open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            cwd=command.directory,
            env=os.environ | command.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        raise RunError(workload.name, status, tail(directory / OUTPUT_FILE, EVIDENCE_BYTES))
    return time.monotonic() - began
