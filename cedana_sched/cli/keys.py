"""`cedana-sched keys`: create, rotate and rewrap the keys that seal snapshots; erase sealed snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cedana_sched.cli import store_options
from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.model.identity import validate_namespace

app = typer.Typer(help="Keys that seal snapshots.", no_args_is_help=True)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys; --key-file names it to other commands.")]


def new(session: CommandContext, file: _File) -> None:
    """Create a file with one key. Without it every snapshot that it seals is lost: keep a copy elsewhere."""
    from cedana_sched.store.sealing import key_file

    key = key_file.create(file)
    session.output.print_result(
        {"file": str(file), "key": key}, lambda: f"{file}: key {key}; keep a copy of the file elsewhere"
    )


def rotate(session: CommandContext, file: _File) -> None:
    """Add a key that wraps from now on. Older ones stay until 'keys rewrap' has been run on every store."""
    from cedana_sched.store.sealing import key_file

    key = key_file.add_newest(file)
    session.output.print_result(
        {"file": str(file), "key": key}, lambda: f"{file}: key {key} wraps now; run 'keys rewrap' on every store"
    )


def rewrap(
    session: CommandContext,
    *,
    namespace: Annotated[str | None, typer.Option(help="Only this namespace.", show_default="all")] = None,
    place: store_options.StoreOptions,
) -> None:
    """Wrap with the newest key what older ones have wrapped; snapshots are not written anew. Older keys may go then."""
    if namespace is not None:
        validate_namespace(namespace)
    changed = store_options.open_store(place, session).rewrap(namespace)
    session.output.print_result(changed, lambda: f"{sum(changed.values())} data keys wrapped anew")


def erase(
    session: CommandContext,
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="Whose sealed snapshots are given up.")],
    *,
    place: store_options.StoreOptions,
) -> None:
    """Remove the data keys of a namespace: its sealed snapshots can never be read again, in no copy of the store.

    Wrapped data keys in backups of the store, or in older versions that a bucket keeps, go by removing them there.
    """
    erased = store_options.open_store(place, session).erase_sealed_snapshots(validate_namespace(namespace))
    session.output.print_result(
        erased, lambda: f"{erased.namespace}: {erased.data_keys} data keys and {erased.snapshots} snapshots erased"
    )


for body in (new, rotate, rewrap, erase):
    command(app)(body)
