"""What `status --watch` follows."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from cedana_sched.cli.kubectl.live_operations import LiveOperations, RateMeter
from cedana_sched.cli.kubectl.views import OperationView
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.testing import FakeApi

from .conftest import put_checkpoint, put_hold, put_restore

MIB = 1 << 20


def test_rate_is_that_of_the_last_seconds() -> None:
    meter = RateMeter()
    assert meter.rate is None
    for second in range(40):
        meter.observe(float(second), 0 if second < 20 else (second - 20) * MIB)
    assert meter.rate == pytest.approx(MIB)


def test_rate_begins_anew_with_another_attempt() -> None:
    meter = RateMeter()
    for at, done in ((0.0, 0), (1.0, 100 * MIB), (2.0, 0)):
        meter.observe(at, done)
    assert meter.rate is None
    meter.observe(3.0, MIB)
    assert meter.rate == pytest.approx(MIB)


async def test_operations_come_and_go_with_their_objects() -> None:
    api, now, seen = FakeApi(), [1000.0], list[OperationView]()
    put_checkpoint(api, "md-1", "Ready", 1, transfer={"readBytes": 100 * MIB})
    put_checkpoint(api, "md-2", "Dumping", transfer={"readBytes": 10 * MIB})
    operations = LiveOperations(lambda: now[0])
    task = asyncio.create_task(operations.run(api, "bio", seen.append))
    try:
        async with asyncio.timeout(60):
            await _until(lambda: len(seen) == 1)
            now[0] += 2
            put_checkpoint(api, "md-2", "Dumping", transfer={"readBytes": 30 * MIB})
            put_hold(api, "h1", "Holding")
            put_restore(api, "restore-1", "Staging")
            await _until(lambda: len(operations.operations()) == 3)
            assert operations.rates() == {"Checkpoint/bio/md-2": pytest.approx(10 * MIB)}
            shown = io.StringIO()
            Console(file=shown, width=200).print(operations)
            assert "10.0 MiB/s" in shown.getvalue()
            assert "~7.0s" in shown.getvalue(), "100 MiB was the snapshot before"
            put_checkpoint(api, "md-2", "Ready", 2)
            api.remove(CHECKPOINTS, "md-1", "bio")
            put_hold(api, "h1", "Released", "Committed")
            put_restore(api, "restore-1", "Running")
            await _until(lambda: not operations.operations())
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [one.step for one in seen if one.name == "md-2"] == ["Dumping", "Dumping", "Ready"]


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # the timeout of the test bounds it
        await asyncio.sleep(0)
