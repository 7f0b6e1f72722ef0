"""What `status --watch` follows."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from cedana_sched.cli.cluster_reader import MissingPermissionError
from cedana_sched.cli.kubectl.live_operations import LiveOperations, RateMeter
from cedana_sched.cli.kubectl.views import OperationView
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.testing import FakeApi

from .conftest import put_checkpoint, put_hold, put_restore, refuse_watch

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
    task = asyncio.create_task(operations.run(api, "bio", seen.extend))
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


async def _follow_briefly(api: FakeApi, *, is_wide: bool = False) -> LiveOperations:
    """Once all kinds were listed."""
    operations, refreshed = LiveOperations(is_wide=is_wide), asyncio.Event()
    task = asyncio.create_task(operations.run(api, "bio", lambda _: refreshed.set()))
    try:
        async with asyncio.timeout(60):
            await refreshed.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return operations


async def test_what_is_expected_is_known_from_the_first_list_on() -> None:
    """Though the objects come in any order."""
    api = FakeApi()
    put_restore(api, "a-restore", "Staging", snapshot={"id": "md", "generation": 1})
    put_checkpoint(api, "b-dumping", "Dumping", transfer={"readBytes": MIB})
    put_checkpoint(api, "c-ready", "Ready", 1, transfer={"readBytes": 100 * MIB})
    assert {one.total_bytes for one in (await _follow_briefly(api)).operations()} == {100 * MIB}


async def test_failure_of_the_caller_ends_it() -> None:
    """Such as a reader of stdout that has exited."""
    api = FakeApi()
    put_checkpoint(api, "md-1", "Dumping")

    def refuse(_: object) -> None:
        raise BrokenPipeError

    async with asyncio.timeout(60):
        with pytest.raises(BrokenPipeError):
            await LiveOperations().run(api, "bio", refuse)


async def test_missing_right_to_watch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    monkeypatch.setattr(api, "stream", refuse_watch)
    async with asyncio.timeout(60):
        with pytest.raises(MissingPermissionError, match=r"^needs watch on \w+\.sched\.cedana\.ai in namespace bio "):
            await LiveOperations().run(api, "bio", lambda _: None)


async def test_table_is_no_higher_than_the_terminal() -> None:
    api = FakeApi()
    for number in range(30):
        put_checkpoint(api, f"md-{number}", "Dumping")
    shown = io.StringIO()
    Console(file=shown, width=200, height=10).print(await _follow_briefly(api))
    assert len(shown.getvalue().splitlines()) == 9
    assert shown.getvalue().endswith("and 23 more\n")


@pytest.mark.parametrize("is_wide", [False, True])
async def test_narrow_terminal_has_all_columns_if_wanted(*, is_wide: bool) -> None:
    api = FakeApi()
    put_checkpoint(api, "md-1", "Dumping")
    shown = io.StringIO()
    Console(file=shown, width=110).print(await _follow_briefly(api, is_wide=is_wide))
    assert ("NODE" in shown.getvalue().splitlines()[0]) == is_wide


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # the timeout of the test bounds it
        await asyncio.sleep(0)
