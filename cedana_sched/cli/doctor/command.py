"""Runs every check, prints one line per finding, and fails if a prerequisite is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.cli.doctor.check_runner import Finding, Level, run_check
from cedana_sched.cli.errors import DoctorError
from cedana_sched.cli.output import Table
from cedana_sched.cli.store_options import StoreOptions
from cedana_sched.model.diagnostic_findings import replace_unprintable
from cedana_sched.model.errors import UsageError


def register(app: typer.Typer) -> None:
    command(app)(doctor)


def doctor(
    session: CommandContext,
    *,
    place: StoreOptions,
    prepare: Annotated[bool, typer.Option("--prepare", help="Make what can be made: CRIU from packages.")] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Look at a Kubernetes cluster, not at this machine.")
    ] = False,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="How the cluster is reached.", show_default="as for kubectl")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            help="Where a pod is created, as a dry run, to see whether the cluster's API server reaches our webhooks.",
            show_default="the first one that lets it",
        ),
    ] = None,
) -> None:
    """Report what this machine or a cluster can do. Exit code 1 when something that is needed is missing."""
    for option, value in (("--kubeconfig", kubeconfig), ("--namespace", namespace)):
        if value is not None and not cluster:
            raise UsageError(option, str(value), "is for a cluster", remedy="write --cluster as well")
    found = _examine_cluster(kubeconfig, namespace) if cluster else examine(session, place, prepare=prepare)
    print_findings(session, found, "the cluster" if cluster else "this machine")


def print_findings(session: CommandContext, found: list[Finding], where: str) -> None:
    """Print the findings.

    Raises:
        DoctorError: one of them is a failure.
    """
    session.output.print_result(found, lambda: _findings_table(found))
    failed = [finding for finding in found if finding.level is Level.FAIL]
    if failed:
        checks = ", ".join(dict.fromkeys(finding.check for finding in failed))
        raise DoctorError(f"{where} cannot run jobs that survive preemption: {checks}", remedy="see above")


def examine(session: CommandContext, place: StoreOptions, *, prepare: bool) -> list[Finding]:
    """Run the checks of this machine; return findings in the order in which a user would resolve them."""
    from cedana_sched.cli.doctor import criu, engine_and_store, gpus_and_disk, machine

    return [
        *run_check("kernel", machine.kernel),
        *run_check("capabilities", machine.capabilities),
        *run_check("namespaces", machine.namespaces),
        *run_check("cgroups", machine.control_groups),
        *run_check("criu", lambda: criu.toolchain(prepare=prepare)),
        *run_check("gpu", gpus_and_disk.gpus),
        *run_check("disk", lambda: gpus_and_disk.disk(session.state_directory)),
        *run_check("store", lambda: engine_and_store.store(place, session)),
        *run_check("engine", lambda: engine_and_store.engine(session)),
    ]


def _examine_cluster(kubeconfig: Path | None, namespace: str | None) -> list[Finding]:
    try:
        from cedana_sched.cli.doctor.cluster.examine import examine as look
    except ImportError as error:
        remedy = "install what clusters need, in the repository: pip install '.[cluster]'"
        raise UsageError("--cluster", "", f"is not part of this installation: {error}", remedy=remedy) from error
    return asyncio.run(look(kubeconfig, namespace))


def _findings_table(found: list[Finding]) -> Table:
    rows: list[tuple[str, ...]] = []
    for finding in found:
        rows.append((finding.level, finding.check, replace_unprintable(finding.message)))
        if finding.remedy:
            rows.append(("", "", f"-> {replace_unprintable(finding.remedy)}"))
    return Table(("STATE", "CHECK", "FINDING"), rows)
