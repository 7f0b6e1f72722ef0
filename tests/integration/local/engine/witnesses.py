"""Submits witnesses (see `witness.py`) and judges what they saw."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from pathlib import Path

from cedana_sched.local.views import JobView
from tests.integration.local.engine.conftest import TIMEOUT_SECONDS, Engine, printed

PROGRAM = Path(__file__).with_name("witness.py")


class Witness:
    """One witness: a job of an engine."""

    def __init__(self, engine: Engine, job: JobView, folder: Path) -> None:
        self.engine = engine
        self.job = job
        self._folder = folder

    @classmethod
    async def submit(cls, engine: Engine, id: str = "witness", mib: int = 0, **fields: object) -> Witness:  # noqa: A002
        folder = engine.home / f"witness-{id}"
        (folder / "beats").mkdir(parents=True)
        words = [sys.executable, str(PROGRAM), str(folder / "beats"), str(folder / "stop"), str(mib)]
        job = await engine.submit(*words, id=id, **fields)
        return cls(engine, job, folder)

    @property
    def uid(self) -> str:
        return self.job.uid

    @property
    def beats(self) -> list[int]:
        """The numbers that were counted, by the clock.

        A listing may show a file that came meanwhile, and not the one before it: so up to the last of an earlier one.
        """
        folder = self._folder / "beats"
        last = max(folder.iterdir(), default=folder)
        return [int(beat.readlink().name) for beat in sorted(folder.iterdir()) if beat <= last]

    @property
    def rewinds(self) -> int:
        """How often it went back to an earlier number; fails if two of it ran at once, or a number was left out."""
        jumps = [(before, after) for before, after in pairwise(self.beats) if after != before + 1]
        assert all(after <= before for before, after in jumps), f"two ran at once: {jumps}"
        return len(jumps)

    async def running(self, runs: int | None = None) -> JobView:
        """Wait until it runs, as its run number `runs`, and counts."""
        job = await self.engine.until(
            self.uid, lambda job: job.phase == "Running" and (runs is None or len(job.runs) >= runs)
        )
        await self.counts_on(len(self.beats) + 2)
        return job

    async def counts_on(self, count: int) -> None:
        """Wait until it has counted so often."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(self.beats) < count:  # noqa: ASYNC110 - what it leaves are files, made while we look
                await asyncio.sleep(0.05)

    async def end(self, cold_starts: int = 0) -> JobView:
        """Have it end, and judge its output: every number once since its last start from the beginning."""
        (self._folder / "stop").touch()
        done = await self.engine.until_phase(self.uid, "Succeeded", "Failed", "Cancelled")
        assert done.phase == "Succeeded", done
        numbers = [int(line) for line in printed(done)]
        beginnings = [position for position, number in enumerate(numbers) if number == 0]
        assert len(beginnings) == 1 + cold_starts
        assert numbers[beginnings[-1] :] == list(range(len(numbers) - beginnings[-1]))
        assert numbers[-1] == self.beats[-1]
        return done
