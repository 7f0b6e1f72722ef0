"""Commands about what admins decide and what waits: `hold`, `policy`, `doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.cli.kubectl.cluster_options import ClusterOptions


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "hold", is_of_engine=False)(list_holds)
    command(app, "policy", is_of_engine=False)(list_policies)
    command(app, "doctor", is_of_engine=False)(examine_cluster)


async def list_holds(session: CommandContext, *, cluster: ClusterOptions) -> None:
    """List PreemptionHolds: evictions that wait for checkpoints, and those that have waited."""
    from cedana_sched.cli.kubectl import tables
    from cedana_sched.cli.kubectl.reads import ClusterReads
    from cedana_sched.kube.server_time import SERVER_TIME

    async with cluster.open_cluster() as api:
        holds = await ClusterReads(api, cluster.selected_namespace(), session.output.print_warning).holds()
    session.output.print_result(holds, lambda: tables.holds_table(holds, SERVER_TIME.seconds()))


async def list_policies(
    session: CommandContext,
    *,
    cluster: ClusterOptions,
    policy: Annotated[str | None, typer.Argument(metavar="POLICY", help="Only this one.")] = None,
) -> None:
    """List CheckpointPolicies. Fields that are not written have their defaults."""
    from cedana_sched.cli.kubectl import tables
    from cedana_sched.cli.kubectl.reads import ClusterReads

    async with cluster.open_cluster() as api:
        policies = await ClusterReads(api, None, session.output.print_warning).policies(policy)
    session.output.print_result(policies, lambda: tables.policies_table(policies))


async def examine_cluster(session: CommandContext, *, cluster: ClusterOptions) -> None:
    """Report what is missing, too wide or unknown in the cluster: the same as `cedana-sched doctor --cluster`."""
    from cedana_sched.cli.doctor.cluster.examine import examine_with
    from cedana_sched.cli.doctor.command import print_findings

    async with cluster.open_cluster() as api:
        found = await examine_with(api, cluster.namespace)
    print_findings(session, found, "the cluster")
