"""`cedana-sched store`: test whether a store can hold snapshots, before a preemption needs the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cedana_sched.cli import storage, units
from cedana_sched.cli.command import command
from cedana_sched.cli.session import Session
from cedana_sched.cli.tables import fields_text

if TYPE_CHECKING:
    from cedana_sched.store.check import StoreReport

app = typer.Typer(help="The store itself.", no_args_is_help=True)


def check(
    session: Session,
    *,
    place: storage.Place,
) -> None:
    """Write, read and delete a sample; say what the store can do and how fast it is."""
    opened = storage.open_store(place, session)
    report = opened.check()
    session.output.data(report, lambda: _text(report))


def _text(report: StoreReport) -> str:
    conditional = "yes" if report.conditional_create else "no"
    return fields_text([
        ("Place", report.place),
        ("Conditional create", conditional),
        ("Commit", report.commit_protocol),
        ("Range reads", "yes" if report.ranges else "no"),
        ("Writes", f"{units.size(report.write_bytes_per_second)}/s, one stream"),
        ("Reads", f"{units.size(report.read_bytes_per_second)}/s, one stream"),
        ("Round trip", units.duration(report.round_trip_seconds)),
    ])  # fmt: skip


command(app)(check)
