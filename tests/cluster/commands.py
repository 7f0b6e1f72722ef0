"""Other programs, run to their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.errors import ClusterError


async def run(
    *command: str | Path,
    what: str,
    remedy: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    log: Path | None = None,
) -> str:
    """Run a program and return what it printed on standard output.

    Args:
        command: the program and its arguments.
        what: begins the error's sentence when the program fails, such as "building kubelet failed".
        remedy: what to do then.
        cwd: where it runs.
        env: variables laid over this process's own.
        stdin: what it reads; nothing without.
        log: takes both outputs instead (the returned text is empty then); named in the error.

    Raises:
        ClusterError: it is not there, or ended with another status than 0; the error holds the last line it printed.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if log is None else asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{what}: there is no {error.filename}", remedy="install it") from error
    try:
        out, err = await process.communicate(stdin)
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started as well
        await process.wait()
        raise
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(out)
    if process.returncode != 0:
        last = (err or out or b"").decode(errors="replace").strip().rsplit("\n", 1)[-1]
        raise ClusterError(f"{what}: {last or f'exit status {process.returncode}'}", log=log, remedy=remedy)
    return "" if log is not None else out.decode(errors="replace")
