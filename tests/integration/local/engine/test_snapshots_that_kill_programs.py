"""A snapshot that kills its program is restored so often as the policy says; then an older one is, and at last none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cedana_sched.local.views import JobView
from tests.integration.local.engine.conftest import TIMEOUT_SECONDS, Engine, printed

pytestmark = pytest.mark.criu

TAKES_POISON = """
while true; do
    echo beat
    [ -n "$poisoned" ] || ! [ -e "$0/poison" ] || { poisoned=yes; echo poisoned; }
    [ -z "$poisoned" ] || ! [ -e "$0/lethal" ] || exit 3
    sleep 0.02
done
"""
"""Once it has seen the file `poison`, its memory says so for ever; it then dies of the file `lethal`."""


async def _until_printed(engine: Engine, job: JobView, line: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while line not in printed(await engine.job(job.uid)):  # noqa: ASYNC110 - a file that grows while we look
            await asyncio.sleep(0.02)


async def _preempted(engine: Engine, job: JobView) -> JobView:
    """Once it runs again."""
    runs = len((await engine.job(job.uid)).runs)
    async with engine.client() as client:
        await client.preempt(job.uid)
    return await engine.until(job.uid, lambda one: one.phase == "Running" and len(one.runs) > runs)


async def _restored(engine: Engine, job: JobView, *phases: str) -> JobView:
    """Once it has got so far."""
    runs = len((await engine.job(job.uid)).runs)
    async with engine.client() as client:
        await client.restore(job.uid)
    return await engine.until(job.uid, lambda one: len(one.runs) > runs and one.phase in phases)


async def test_it_is_restored_twice_then_an_older_one_is_and_then_it_starts_cold(engine: Engine, home: Path) -> None:
    job = await engine.submit("bash", "-c", TAKES_POISON, str(home), id="taker")
    await engine.until_phase(job.uid, "Running")
    await _preempted(engine, job)
    (home / "poison").touch()
    await _until_printed(engine, job, "poisoned")
    (home / "poison").unlink()
    await _preempted(engine, job)
    (home / "lethal").touch()
    await engine.until_phase(job.uid, "Failed")
    await _restored(engine, job, "Failed")

    older = await _restored(engine, job, "Running")
    assert older.runs[-1].restored_from == "default/taker/0/main@1", "it is killed for ever"
    (home / "poison").touch()
    await engine.until_phase(job.uid, "Failed")
    await _restored(engine, job, "Failed")
    (home / "poison").unlink()

    cold = await _restored(engine, job, "Running")
    first, second = (f"default/taker/0/main@{number}" for number in (1, 2))
    assert [run.restored_from for run in cold.runs] == [None, first, second, second, first, first, None]
    assert cold.runs[-1].cold_because is not None
    assert "failed within 60 s of being continued, 2 times, and there is no older one" in cold.runs[-1].cold_because
