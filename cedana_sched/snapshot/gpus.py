"""Finds the machine's NVIDIA GPUs by a process (`nvml_query`): a driver may hang, crash, or report any bytes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path

import msgspec

from cedana_sched.model.gpus import MOST_GPUS, MOST_MIG_DEVICES, Gpu, Gpus, MigDevice
from cedana_sched.snapshot.launch import interpreter_environment

LOOK_SECONDS = 5.0
_KILLED_SECONDS = 1.0
_ANSWER_BYTES = 1 << 20
_LONGEST = 96
"""Characters of a name or a UUID; `NVML_DEVICE_NAME_V2_BUFFER_SIZE` in nvml.h."""
_LONGEST_PROBLEM = 300
_LARGEST_BYTES = 1 << 62

DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
"""One of these exists where the kernel has the driver, in containers as well."""
HANGS = "the driver hangs: a process waits in it and cannot be killed"
"""The problem after which another query would leave another process."""
_COMMAND = (sys.executable, "-P", "-m", "cedana_sched.snapshot.nvml_query")


class _HangsError(Exception):
    pass


async def find_gpus(root: Path = Path("/"), seconds: float = LOOK_SECONDS) -> Gpus:
    """Return the machine's GPUs. Every failure is a `problem` in the result.

    Args:
        root: where the host's files are.
        seconds: what the driver may take.
    """
    try:
        if not any(path.exists() for path in DRIVER):
            return Gpus()
        return _sanitize_gpus(await _run_query_process(root, seconds))
    except _HangsError:
        return Gpus(problem=HANGS)
    except TimeoutError:
        return Gpus(problem=f"the driver did not answer within {seconds:g} s")
    except Exception as error:  # noqa: BLE001 - informational: no failure may end who looks
        return Gpus(problem=_printable_text(f"the driver could not be queried: {error}", _LONGEST_PROBLEM))


async def _run_query_process(root: Path, seconds: float) -> Gpus:
    """Run the program.

    Raises:
        TimeoutError: it did not end in time, and was killed.
        _HangsError: it waits in the kernel, and is left behind.
        OSError: it cannot be started.
        ValueError, RecursionError: its output is no answer.
    """
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, str(root), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=interpreter_environment(),
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            output = await _read_output(process)
            status = await process.wait()
    except TimeoutError as error:
        if not await _kill_process(process):
            raise _HangsError from error
        raise
    except BaseException:
        await _kill_process(process)
        raise
    if status and not output:
        how = f"signal {-status} ended it" if status < 0 else f"exit status {status}"
        return Gpus(problem=f"the driver crashed the process that used it: {how}")
    return msgspec.json.decode(output, type=Gpus)


async def _read_output(process: Process) -> bytes:
    assert process.stdout is not None  # noqa: S101  # it is a pipe
    try:
        await process.stdout.readexactly(_ANSWER_BYTES)
    except asyncio.IncompleteReadError as error:
        return error.partial
    raise ValueError("it does not end")


async def _kill_process(process: Process) -> bool:
    """Kill the process and those that it has started; False: it waits in the kernel, and is left behind."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_SECONDS):
                await process.wait()
    return process.returncode is not None


def _sanitize_gpus(gpus: Gpus) -> Gpus:
    return Gpus(
        devices=tuple(
            Gpu(
                *_sanitized_fields_of(gpu),
                mig_devices=tuple(MigDevice(*_sanitized_fields_of(mig)) for mig in gpu.mig_devices[:MOST_MIG_DEVICES]),
            )
            for gpu in gpus.devices[:MOST_GPUS]
        ),
        driver=_printable_text(gpus.driver),
        cuda=_printable_text(gpus.cuda),
        problem=_printable_text(gpus.problem, _LONGEST_PROBLEM),
    )


def _sanitized_fields_of(device: MigDevice) -> tuple[str, str, int | None]:
    size = device.memory_bytes
    return (
        _printable_text(device.name),
        _printable_text(device.uuid),
        size if size is not None and 0 <= size <= _LARGEST_BYTES else None,
    )


def _printable_text(text: str, longest: int = _LONGEST) -> str:
    """Return printable ASCII of a bounded length."""
    return "".join(one if one.isascii() and one.isprintable() else "?" for one in text[:longest])
