"""The engine and the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cedana_sched.cli.doctor.findings import Finding, Level

if TYPE_CHECKING:
    from cedana_sched.cli.command import Session
    from cedana_sched.local.views import EngineView


def engine(session: Session) -> Iterator[Finding]:
    from cedana_sched.local.client import EngineUnreachableError

    try:
        view = asyncio.run(_ask(session))
    except EngineUnreachableError as error:
        yield Finding("engine", Level.OK, f"none runs: {error.message}")
        return
    yield Finding("engine", Level.OK, f"version {view.version} runs as process {view.pid}, store: {view.store}")


async def _ask(session: Session) -> EngineView:
    async with session.client() as client:
        return await client.engine()
