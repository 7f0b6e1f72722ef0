"""Checks of the engine and the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cedana_sched.cli import units
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.store_options import StoreOptions, open_store
from cedana_sched.model.errors import NotFoundError

if TYPE_CHECKING:
    from cedana_sched.cli.command_context import CommandContext
    from cedana_sched.local.views import EngineView


def engine(session: CommandContext) -> Iterator[Finding]:
    from cedana_sched.local.client import EngineUnreachableError

    try:
        view = asyncio.run(_fetch_engine_view(session))
    except EngineUnreachableError as error:
        yield Finding("engine", Level.OK, f"none runs: {error.message}")
        return
    yield Finding("engine", Level.OK, f"version {view.version} runs as process {view.pid}, store: {view.store}")


async def _fetch_engine_view(session: CommandContext) -> EngineView:
    async with session.client() as client:
        return await client.engine()


def store(place: StoreOptions, session: CommandContext) -> Iterator[Finding]:
    """Test the selected store with a sample of 32 MiB."""
    try:
        opened = open_store(place, session)
    except NotFoundError:
        yield Finding("store", Level.OK, f"none yet: the engine makes a folder below {session.state_directory}")
        return
    report = opened.check_storage()
    written, read = map(units.format_size, (report.write_bytes_per_second, report.read_bytes_per_second))
    message = f"{report.place}: {written}/s in, {read}/s out, commits by {report.commit_protocol}"
    if report.ranges:
        yield Finding("store", Level.OK, message)
    else:
        remedy = "restores read whole packs: use another server"
        yield Finding("store", Level.WARN, f"{message}, no range reads", remedy)
