"""What a program has printed arrives once and in order, also what was in its buffer, or in a pipe, at the eviction."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import PROTECT
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition, is_gone
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.cluster.patience import patient
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product

pytestmark = [pytest.mark.any_shape, pytest.mark.exhaustive]

_MOST_SHOWN: Final = 16 << 20
"""Bytes that are taken from `kubectl` before a test reads them; who does not take them delays the log, too."""
HELD: Final = 2_500
"""Lines in the buffer: five times what a pipe takes at once, and less than the buffer."""
_LINE: Final = "f\"{number:07} {'x' * 119}\""
_HOLDS: Final = f"""
import sys
out = open(1, "w", buffering=1 << 20, closefd=False)
for number in range({HELD}):
    print({_LINE}, file=out)
print("holds", file=sys.stderr, flush=True)
for _ in range(2):
    sys.stdin.readline()
    out.flush()
"""
"""Fills its buffer; prints it once a line is typed, and ends once a second one is."""
_BUFFER: Final = 1 << 17
"""Bytes: twice what a pipe takes at once."""
_PRINTS: Final = f"""
import itertools, os, time
out = open(1, "w", buffering={_BUFFER}, closefd=False)
for number in itertools.count():
    print({_LINE}, file=out)
    if number % 100 == 0:
        if os.path.exists("/tmp/enough"):
            break
        time.sleep(0.05)
out.flush()
"""
"""Prints its buffer about every half second."""


@pytest_asyncio.fixture(loop_scope="session")
async def protected(namespace: Namespace, release: Product) -> Namespace:
    """A namespace that protects all of its pods."""
    await release.ensure(kubernetes={"enabled": True})
    await namespace.kubectl("label", "namespace", namespace.name, f"{PROTECT}=true")
    return namespace


async def test_full_buffer_is_printed_once_by_the_successor(protected: Namespace, toolbox: str) -> None:
    async with Following.of(protected, "printer") as printer:
        await protected.apply(_job(toolbox, _HOLDS))
        await asyncio.wait_for(printer.said(0, 1), patient(120))
        await _delete_pod(protected, printer)
        async with _attached(protected, await _successor(protected, printer)) as attached:
            await _type(attached, "print")
            await asyncio.wait_for(printer.said(0, 1 + HELD), patient(60))
            await _type(attached, "end")
            shown = await _rest(attached)
        await protected.wait("batch/v1", "Job", "printer", has_condition("Complete"), within=60)
        await asyncio.wait_for(printer.read(), patient(60))
    assert shown.splitlines() == _lines(HELD)
    assert printer.by_pod(0) == [["holds"], _lines(HELD)]


async def test_output_in_motion_arrives_once_and_in_order(protected: Namespace, toolbox: str) -> None:
    async with Following.of(protected, "printer") as printer:
        await protected.apply(_job(toolbox, _PRINTS))
        await asyncio.wait_for(printer.said(0, HELD), patient(120))
        async with _attached(protected, printer.pods[0][0]) as attached:
            first = await _first(attached)
            await _delete_pod(protected, printer)
            first += await _rest(attached)
        successor = await _successor(protected, printer)
        async with _attached(protected, successor) as attached:
            second = await _first(attached)
            await protected.exec(successor, "touch", "/tmp/enough")
            second += await _rest(attached)
        await protected.wait("batch/v1", "Job", "printer", has_condition("Complete"), within=60)
        await asyncio.wait_for(printer.read(), patient(60))
    lines = printer.lines(0)
    assert lines == _lines(len(lines))
    said = "\n".join(lines) + "\n"
    assert first in said, "a part, without gap or repetition"
    assert said.endswith(second)


def _job(image: str, program: str) -> Object:
    return job("printer", container(image, "python3", "-c", program, stdin=True), fields={"backoffLimit": 0})


def _lines(count: int) -> list[str]:
    return [f"{number:07} {'x' * 119}" for number in range(count)]


async def _delete_pod(namespace: Namespace, following: Following) -> None:
    await namespace.kubectl("delete", "pod", following.pods[0][0], "--wait=false")


async def _successor(namespace: Namespace, following: Following) -> str:
    """Wait until the pod's successor runs; its name."""
    await namespace.wait("v1", "Pod", following.pods[0][0], is_gone, within=120)
    (running,) = await namespace.pods("job-name=printer", within=120)
    return str(running["metadata"]["name"])


@asynccontextmanager
async def _attached(namespace: Namespace, pod: str) -> AsyncIterator[Process]:
    """`kubectl attach` inside the block, without a terminal."""
    command = namespace.kubectl_command("attach", "--stdin", "--quiet", pod)
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_MOST_SHOWN
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended with its pod
            process.kill()
        await process.communicate()


async def _type(attached: Process, line: str) -> None:
    assert attached.stdin is not None
    attached.stdin.write(f"{line}\n".encode())
    await attached.stdin.drain()


async def _first(attached: Process) -> str:
    """Wait until as much as two full buffers is shown."""
    assert attached.stdout is not None
    return (await asyncio.wait_for(attached.stdout.readexactly(2 * _BUFFER), patient(60))).decode()


async def _rest(attached: Process) -> str:
    """Wait until it has ended; all that it has shown since."""
    assert attached.stdout is not None
    return (await asyncio.wait_for(attached.stdout.read(), patient(120))).decode()
