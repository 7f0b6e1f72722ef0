"""`cedana-sched store`: test whether a store can hold snapshots, before a preemption needs the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cedana_sched.cli import store_options, units
from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.cli.job_tables import fields_text

if TYPE_CHECKING:
    from cedana_sched.store.check import StoreReport

app = typer.Typer(help="The store itself.", no_args_is_help=True)


def check(
    session: CommandContext,
    *,
    place: store_options.StoreOptions,
) -> None:
    """Write, read and delete a sample; say what the store can do and how fast it is."""
    opened = store_options.open_store(place, session)
    report = opened.check_storage()
    session.output.print_result(report, lambda: _format_store_report(report))


def _format_store_report(report: StoreReport) -> str:
    conditional = "yes" if report.conditional_create else "no"
    return fields_text([
        ("Place", report.place),
        ("Conditional create", conditional),
        ("Commit", report.commit_protocol),
        ("Range reads", "yes" if report.ranges else "no"),
        ("Writes", f"{units.format_size(report.write_bytes_per_second)}/s, one stream"),
        ("Reads", f"{units.format_size(report.read_bytes_per_second)}/s, one stream"),
        ("Round trip", units.format_duration(report.round_trip_seconds)),
    ])  # fmt: skip


command(app)(check)
