"""Command `status`: what is held, saved and restored now; with `--watch` until it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.cli.kubectl.cluster_options import ClusterOptions

if TYPE_CHECKING:
    from cedana_sched.cli.kubectl.views import OperationView
    from cedana_sched.cli.output import Output
    from cedana_sched.kube.client import Api


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "status", is_of_engine=False)(show_status)


async def show_status(
    session: CommandContext,
    *,
    cluster: ClusterOptions,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show changes, until interrupted: on a terminal a live table.")
    ] = False,
) -> None:
    """Show what is held, saved and restored now: steps, bytes, rates, and the time that is left."""
    from cedana_sched.cli.kubectl import tables
    from cedana_sched.cli.kubectl.reads import ClusterReads
    from cedana_sched.kube.server_time import SERVER_TIME

    namespace = cluster.selected_namespace()
    async with cluster.open_cluster() as api:
        found = await ClusterReads(
            api, namespace, session.output.print_warning
        ).operations()  # it names a missing right
        if not watch:
            session.output.print_result(found, lambda: tables.operations_table(found, SERVER_TIME.seconds()))
        else:
            await _follow(session.output, api, namespace)


async def _follow(output: Output, api: Api, namespace: str | None) -> None:
    from cedana_sched.cli.kubectl.live_operations import LiveOperations
    from cedana_sched.cli.logging import log_to_stderr
    from cedana_sched.cli.output import Format

    operations = LiveOperations(is_wide=output.format is Format.WIDE)
    if not output.is_live_terminal:
        log_to_stderr()
        await operations.run(api, namespace, _line_printer(output))
        return
    from rich.live import Live

    # not by the thread of `Live`, which would read what the watches are changing
    with Live(operations, console=output.create_console(), auto_refresh=False) as live:
        log_to_stderr()  # above the table: `Live` has redirected stderr
        await operations.run(api, namespace, lambda _: live.refresh())


def _line_printer(output: Output) -> Callable[[Iterable[OperationView]], None]:
    from cedana_sched.cli.kubectl import tables
    from cedana_sched.kube.server_time import SERVER_TIME

    def print_lines(changed: Iterable[OperationView]) -> None:
        for one in changed:
            output.print_record(one, tables.operation_line(one, SERVER_TIME.seconds()))

    return print_lines
