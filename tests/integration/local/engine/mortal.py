"""A real engine that kills itself at one instant: `python mortal.py FILE ARGUMENTS…` of `cedana-sched`.

FILE names the instant, as long as it is there; the engine removes it as it dies. Instants are what the engine is about
to write down, or has just written: `unsaved WHAT`, `saved WHAT`, where WHAT is `Checkpoint STEP`, `Restore STEP` or
`Job PHASE`. Saved means that nothing of what follows has been done; unsaved, that what led there has been done and
nobody knows. `during Dump` is when CRIU dumps.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.cli.main import main
from cedana_sched.local.jobs.journal import SqliteJournal
from cedana_sched.model.orders import Dump, Order, Outcome
from tests.processes import below, words_of


def die_at(wanted: Path) -> None:
    """Have this process die at the instant that stands in `wanted`."""

    def passed(this: str) -> None:
        if wanted.exists() and wanted.read_text() == this:
            wanted.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def around(save: Callable[..., Awaitable[None]], names: Callable[..., Iterable[str]]) -> Callable[..., Any]:
        async def save_or_die(journal: SqliteJournal, *arguments: Any) -> None:
            for name in names(*arguments):
                passed(f"unsaved {name}")
            await save(journal, *arguments)
            for name in names(*arguments):
                passed(f"saved {name}")

        return save_or_die

    def during_dump() -> None:
        await_criu()
        passed("during Dump")

    perform = NodeAgent.perform

    async def perform_or_die(agent: NodeAgent, order: Order) -> AsyncIterator[Outcome]:
        if isinstance(order, Dump):
            threading.Thread(target=during_dump, daemon=True).start()
        async for outcome in perform(agent, order):
            yield outcome

    SqliteJournal.save = around(SqliteJournal.save, _records)  # type: ignore[method-assign]
    SqliteJournal.save_changes = around(SqliteJournal.save_changes, _jobs)  # type: ignore[method-assign]
    NodeAgent.perform = perform_or_die  # type: ignore[method-assign,assignment]


def await_criu() -> None:
    """Return as soon as a CRIU works below this process."""
    while True:
        if any("dump" in words_of(process) for process in below(os.getpid())):
            return
        time.sleep(0.002)  # it lives for some 50 ms, and nothing announces it


def _records(records: tuple[Any, ...], *_: Any) -> list[str]:
    return [f"{type(record).__name__} {record.step.value}" for record in records]


def _jobs(step: Any) -> list[str]:
    return [f"Job {job.phase.value}" for job in step.jobs]


if __name__ == "__main__":
    die_at(Path(sys.argv.pop(1)))
    main()
