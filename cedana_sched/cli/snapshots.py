"""`cedana-sched snapshots`: manage the snapshots of a store, directly and without an engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from cedana_sched.cli import arguments, store_options, units
from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.model.errors import IncompatibleError, IntegrityError, NotFoundError, UsageError
from cedana_sched.model.identity import SnapshotRef

if TYPE_CHECKING:
    from cedana_sched.store.snapshot_store import SnapshotStore
    from cedana_sched.store.verify import VerifyReport

app = typer.Typer(help="Snapshots in the store.", no_args_is_help=True)


def list_(
    session: CommandContext,
    id_: Annotated[str | None, typer.Argument(metavar="ID", help="Checkpoint id, or namespace/id.")] = None,
    *,
    place: store_options.StoreOptions,
) -> None:
    """List committed snapshots, oldest first."""
    from cedana_sched.cli.snapshot_views import snapshot_view, snapshots_table

    opened = store_options.open_store(place, session)
    namespace, _, name = (id_ or "").rpartition("/")
    found = opened.list(namespace or None, name or None) if namespace or not name else opened.list()
    views = [snapshot_view(one) for one in found if not name or one.ref.identity.id == name]
    session.output.print_result(views, lambda: snapshots_table(views, time.time()))


def inspect(
    session: CommandContext,
    snapshot: arguments.Reference,
    *,
    place: store_options.StoreOptions,
) -> None:
    """Show what a snapshot holds, where it was taken, and what it cost."""
    from cedana_sched.cli.snapshot_processes import contents_text, read_processes_in_snapshot
    from cedana_sched.cli.snapshot_views import inspect_text, inspect_view

    opened = store_options.open_store(place, session)
    reader = opened.open_snapshot(SnapshotRef.parse(snapshot))
    contents = read_processes_in_snapshot(reader)
    view = inspect_view(reader.manifest, contents)
    session.output.print_result(view, lambda: f"{inspect_text(view, time.time())}\n\n{contents_text(contents)}")


def verify(
    session: CommandContext,
    snapshot: Annotated[str | None, typer.Argument(metavar="SNAPSHOT", help=arguments.SNAPSHOT_FORM)] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Every snapshot in the store.")] = False,
    place: store_options.StoreOptions,
) -> None:
    """Read every byte of a snapshot and compare it with what was written. Exit code 1 when something is damaged."""
    from cedana_sched.cli.snapshot_views import verified_line
    from cedana_sched.store.verify import unreadable_report

    if (snapshot is None) != everything:
        raise UsageError("snapshot", snapshot or "", "or --all must be given, not both", remedy="give one of the two")
    opened = store_options.open_store(place, session)
    reports: list[VerifyReport] = []
    newer: list[IncompatibleError] = []
    for ref in opened.committed_snapshots() if snapshot is None else [SnapshotRef.parse(snapshot)]:
        try:
            reports.append(_verify_with_progress(session, opened, ref))
        except NotFoundError:
            if not everything:
                raise
            continue  # removed meanwhile
        except IncompatibleError as error:
            if not everything:
                raise
            newer.append(error)
            continue
        except IntegrityError as error:  # a corrupt manifest; the other snapshots are verified all the same
            reports.append(unreadable_report(ref, error))
        session.output.print_note(verified_line(reports[-1]))
    session.output.print_result(
        [{"snapshot": str(report.snapshot), "ok": report.ok, **_report_fields(report)} for report in reports],
        lambda: f"{sum(report.ok for report in reports)} of {len(reports)} snapshots are whole",
    )
    if damaged := [report for report in reports if not report.ok]:
        problems = tuple(problem for report in damaged for problem in report.problems)
        names = ", ".join(str(report.snapshot) for report in damaged)
        remedy = "remove it, so that an older generation is continued instead"
        raise IntegrityError(f"damaged: {names}", remedy=remedy, evidence=problems)
    if newer:
        raise newer[0]


def _verify_with_progress(session: CommandContext, opened: SnapshotStore, ref: SnapshotRef) -> VerifyReport:
    from cedana_sched.cli.progress import counted_progress

    with counted_progress(session.output, f"verify {ref}") as show:
        return opened.verify(ref, show)


def _report_fields(report: VerifyReport) -> dict[str, object]:
    names = ("chunks", "bytes_verified", "seconds", "damaged", "problems")
    return {name: getattr(report, name) for name in names}


def rm(
    session: CommandContext,
    snapshots: Annotated[list[str], typer.Argument(metavar="SNAPSHOT", help="Snapshots to remove.")],
    *,
    place: store_options.StoreOptions,
) -> None:
    """Remove snapshots. Their bytes go with a later garbage collection, unless others need them."""
    refs = [SnapshotRef.parse(text) for text in snapshots]
    opened = store_options.open_store(place, session)
    for ref in refs:
        opened.remove(ref)
    removed = [str(ref) for ref in refs]
    session.output.print_result({"removed": removed}, lambda: "\n".join(f"removed {name}" for name in removed))


def gc(
    session: CommandContext,
    *,
    namespace: Annotated[str | None, typer.Option(help="Only this namespace.", show_default="all")] = None,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="Leave what became garbage later than this ago.")
    ] = "15m",
    place: store_options.StoreOptions,
) -> None:
    """Remove packs that no snapshot needs. The first run marks them, a run after the grace period removes them."""
    seconds = units.parse_duration("grace", grace)
    opened = store_options.open_store(place, session)
    reports = opened.collect_garbage(namespace, grace_seconds=seconds)
    session.output.print_result(
        reports,
        lambda: (
            "\n".join(
                f"{report.namespace}: {report.removed_packs} packs removed ({units.format_size(report.removed_bytes)})"
                f", {report.condemned_packs} marked for the next run"
                for report in reports
            )
            or "the store is empty"
        ),
    )


command(app, "list")(list_)
for body in (inspect, verify, rm, gc):
    command(app)(body)
