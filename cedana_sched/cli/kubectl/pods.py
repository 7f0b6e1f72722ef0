"""Commands about protected pods: `list`, `inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.cli.kubectl.cluster_options import ClusterOptions
from cedana_sched.model.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "list", is_of_engine=False)(list_pods)
    command(app, "inspect", is_of_engine=False)(inspect_pod)


async def list_pods(session: CommandContext, *, cluster: ClusterOptions) -> None:
    """List protected pods: whether they can be saved, their newest snapshots, and the work that no snapshot has."""
    from cedana_sched.cli.kubectl import tables
    from cedana_sched.cli.kubectl.reads import ClusterReads
    from cedana_sched.kube.server_time import SERVER_TIME

    async with cluster.open_cluster() as api:
        pods = await ClusterReads(api, cluster.selected_namespace(), session.output.print_warning).pods()
    session.output.print_result(pods, lambda: tables.pods_table(pods, SERVER_TIME.seconds()))


async def inspect_pod(
    session: CommandContext,
    *,
    cluster: ClusterOptions,
    pod: Annotated[str, typer.Argument(metavar="POD", help="A protected pod.")],
) -> None:
    """Show all about one pod: its snapshots, its restores, what would stand in the way of the next checkpoint."""
    from cedana_sched.cli.kubectl import tables
    from cedana_sched.cli.kubectl.reads import ClusterReads
    from cedana_sched.kube.server_time import SERVER_TIME

    namespace = cluster.selected_namespace()
    if namespace is None:
        raise UsageError("POD", pod, "is in one namespace", remedy="name it with --namespace, not --all-namespaces")
    async with cluster.open_cluster() as api:
        details = await ClusterReads(api, namespace, session.output.print_warning).details(pod)
    session.output.print_result(details, lambda: tables.details_text(details, SERVER_TIME.seconds()))
