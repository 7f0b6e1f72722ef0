"""What is done on the side: each thing until it is done, whatever becomes of the others."""

from __future__ import annotations

import asyncio

import pytest

from cedana_sched_armada.retried_tasks import RetriedTasks
from tests.pauses import shorten_pauses


async def test_a_defect_is_said_and_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    chores, attempts, done = RetriedTasks(), list[str](), asyncio.Event()

    async def defective() -> None:
        attempts.append("defective")
        if len(attempts) < 3:
            raise KeyError("armadaproject.io/gangCardinality")
        done.set()

    async def sound() -> None:
        await asyncio.sleep(0)

    running = asyncio.create_task(chores.run())
    chores.start("a defective one", defective)
    chores.start("a sound one", sound)
    async with asyncio.timeout(60):
        await asyncio.wait({running, asyncio.create_task(done.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert attempts == ["defective"] * 3
