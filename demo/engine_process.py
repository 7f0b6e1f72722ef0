"""The demo's engine process, run as a user would: `cedana-sched engine run`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from cedana_sched.local.client import EngineClient, EngineUnreachableError
from demo.scenario import CONFIGURATION, DemoError
from workloads.comparing import EVIDENCE_BYTES, tail

_START_SECONDS = 180.0  # the first start builds the CRIU toolchain
_STOP_SECONDS = 20.0
_RETRY_SECONDS = 0.05


@asynccontextmanager
async def running_engine(directory: Path) -> AsyncIterator[EngineClient]:
    """Run an engine inside the block, with its state, store and log in `directory`.

    Raises:
        DemoError: the engine does not start; the message has the end of its log.
    """
    log = directory / "engine.log"
    process = await _start(directory, log)
    try:
        async with EngineClient(directory / "state") as client:
            await _ready(client, process, log)
            yield client
    finally:
        await _stop(process)


async def _start(directory: Path, log: Path) -> asyncio.subprocess.Process:
    configuration = directory / "groups.toml"
    configuration.write_text(CONFIGURATION)
    program = Path(sys.executable).with_name("cedana-sched")
    command = (str(program), "--state-dir", str(directory / "state"))
    run = ("engine", "run", "--config", str(configuration), "--store", str(directory / "store"))
    with log.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            *command, *run, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
        )


async def _ready(client: EngineClient, process: asyncio.subprocess.Process, log: Path) -> None:
    """Poll until the engine responds; the engine has no other readiness signal than its socket."""
    try:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(EngineUnreachableError),
            wait=wait_fixed(_RETRY_SECONDS),
            stop=stop_after_delay(_START_SECONDS),
            reraise=True,
        ):
            with attempt:
                if process.returncode is not None:
                    raise DemoError(f"the engine ended with status {process.returncode}:\n{tail(log, EVIDENCE_BYTES)}")
                await client.engine()
    except EngineUnreachableError as error:
        raise DemoError(f"the engine does not answer: {error}\n{tail(log, EVIDENCE_BYTES)}") from error


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
