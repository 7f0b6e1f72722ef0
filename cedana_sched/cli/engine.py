"""`cedana-sched engine`: run the embedded engine in the foreground, and show its status."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from cedana_sched.cli import job_tables, store_options
from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command

app = typer.Typer(help="The engine that runs jobs on this machine.", no_args_is_help=True)


def run(
    session: CommandContext,
    *,
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Groups, quotas and policies.")
    ] = None,
    place: store_options.NewEngineStoreOptions,
) -> None:
    """Run the engine until Ctrl-C or SIGTERM. Jobs live on; the next engine finds them."""
    from cedana_sched.cli.logging import log_to_stderr
    from cedana_sched.local.engine import EngineOptions
    from cedana_sched.local.engine import run as run_engine

    log_to_stderr()
    store = store_options.store_configuration_for_engine(place, session)
    run_engine(EngineOptions(state_directory=session.state_directory, config=config, store=store))


async def status(session: CommandContext) -> None:
    """Show the running engine, its store and its groups."""
    async with session.client() as client:
        engine = await client.engine()
    session.output.print_result(engine, lambda: job_tables.engine_text(engine, time.time()))


async def groups(session: CommandContext) -> None:
    """Show each group's quota, what it uses and what it borrows."""
    async with session.client() as client:
        engine = await client.engine()
    session.output.print_result(engine.groups, lambda: job_tables.groups_table(engine.groups))


for body in (run, status, groups):
    command(app)(body)
