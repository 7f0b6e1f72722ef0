"""The journal's writer is killed by SIGKILL again and again: each time whole steps are there, and none is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from cedana_sched.local.jobs.journal import SqliteJournal

WRITER = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from msgspec.structs import replace
    from cedana_sched.local.jobs.journal import SqliteJournal, StateChanges
    from cedana_sched.local.state_directory_lock import lock_state_directory
    from cedana_sched.local.views import EventView
    from tests.unit.local.jobs.job_builders import job

    async def write():
        async with SqliteJournal.open(Path(sys.argv[1])) as journal:
            jobs = await journal.load_jobs() or (job("one", at=1.0), job("two", at=2.0))
            while True:
                jobs = tuple(replace(j, preemptions=j.preemptions + 1) for j in jobs)
                count = jobs[0].preemptions
                await journal.save_changes(StateChanges(jobs=jobs, events=(EventView(1.0, "Wrote", str(count)),)))
                print(count, flush=True)

    with lock_state_directory(Path(sys.argv[1])):
        asyncio.run(write())
""")


def _write_until_killed(directory: Path, steps: int) -> int:
    """Let a writer write, kill it in the middle of a further step, return the last step it had confirmed."""
    command = [sys.executable, "-c", WRITER, str(directory)]
    confirmed = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(steps):
            confirmed = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        return max([confirmed, *(int(line) for line in writer.stdout if line.endswith("\n"))])


async def test_killed_at_any_instant_the_journal_holds_whole_steps_and_every_confirmed_one(tmp_path: Path) -> None:
    dice = random.Random(20)
    for _ in range(6):
        confirmed = _write_until_killed(tmp_path, dice.randint(1, 30))

        async with SqliteJournal.open(tmp_path) as journal:
            one, two = await journal.load_jobs()
            events = await journal.events(limit=1)
        assert one.preemptions == two.preemptions == int(events[0].text)
        assert confirmed <= one.preemptions <= confirmed + 1
