"""Runs every check, prints one line for each finding, and fails if something that is needed is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from cedana_sched.cli.command import Session, command
from cedana_sched.cli.doctor.findings import Finding, Level, checked
from cedana_sched.cli.errors import DoctorError
from cedana_sched.cli.output import Table
from cedana_sched.cli.storage import Place


def register(app: typer.Typer) -> None:
    command(app)(doctor)


def doctor(
    session: Session,
    *,
    place: Place,
    prepare: Annotated[bool, typer.Option("--prepare", help="Make what can be made: CRIU from packages.")] = False,
) -> None:
    """Say what this machine can do. Exit code 1 when something that is needed is missing."""
    found = examine(session, place, prepare=prepare)
    session.output.data(found, lambda: _table(found))
    failed = [finding for finding in found if finding.level is Level.FAIL]
    if failed:
        checks = ", ".join(dict.fromkeys(finding.check for finding in failed))
        raise DoctorError(f"this machine cannot run jobs that survive preemption: {checks}", remedy="see above")


def examine(session: Session, place: Place, *, prepare: bool) -> list[Finding]:
    """All findings, in the order in which a person would mend them."""
    from cedana_sched.cli.doctor import criu, devices, machine, services

    return [
        *checked("kernel", machine.kernel),
        *checked("capabilities", machine.capabilities),
        *checked("namespaces", machine.namespaces),
        *checked("cgroups", machine.control_groups),
        *checked("criu", lambda: criu.toolchain(prepare=prepare)),
        *checked("gpu", devices.gpus),
        *checked("disk", lambda: devices.disk(session.state_directory)),
        *checked("store", lambda: services.store(place, session)),
        *checked("engine", lambda: services.engine(session)),
    ]


def _table(found: list[Finding]) -> Table:
    rows: list[tuple[str, ...]] = []
    for finding in found:
        rows.append((finding.level, finding.check, finding.says))
        if finding.remedy:
            rows.append(("", "", f"-> {finding.remedy}"))
    return Table(("STATE", "CHECK", "FINDING"), rows)
