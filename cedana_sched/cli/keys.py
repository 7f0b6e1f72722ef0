"""`cedana-sched keys`: create, rotate and rewrap the keys that seal snapshots; erase sealed snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cedana_sched.cli import storage
from cedana_sched.cli.command import command
from cedana_sched.cli.session import Session
from cedana_sched.model.identity import validate_namespace

app = typer.Typer(help="Keys that seal snapshots.", no_args_is_help=True)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys; --key-file names it to other commands.")]


def new(session: Session, file: _File) -> None:
    """Create a file with one key. Without it every snapshot that it seals is lost: keep a copy elsewhere."""
    from cedana_sched.store.sealing import key_file

    key = key_file.create(file)
    session.output.data(
        {"file": str(file), "key": key}, lambda: f"{file}: key {key}; keep a copy of the file elsewhere"
    )


def rotate(session: Session, file: _File) -> None:
    """Add a key that wraps from now on. Older ones stay until 'keys rewrap' has been run on every store."""
    from cedana_sched.store.sealing import key_file

    key = key_file.add_newest(file)
    session.output.data(
        {"file": str(file), "key": key}, lambda: f"{file}: key {key} wraps now; run 'keys rewrap' on every store"
    )


def rewrap(
    session: Session,
    *,
    namespace: Annotated[str | None, typer.Option(help="Only this namespace.", show_default="all")] = None,
    place: storage.Place,
) -> None:
    """Wrap with the newest key what older ones have wrapped; snapshots are not written anew. Older keys may go then."""
    if namespace is not None:
        validate_namespace(namespace)
    changed = storage.open_store(place, session).rewrap(namespace)
    session.output.data(changed, lambda: f"{sum(changed.values())} data keys wrapped anew")


def erase(
    session: Session,
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="Whose sealed snapshots are given up.")],
    *,
    place: storage.Place,
) -> None:
    """Remove the data keys of a namespace: its sealed snapshots can never be read again, in no copy of the store.

    Wrapped data keys in backups of the store, or in older versions that a bucket keeps, go by removing them there.
    """
    erased = storage.open_store(place, session).erase(validate_namespace(namespace))
    session.output.data(
        erased, lambda: f"{erased.namespace}: {erased.data_keys} data keys and {erased.snapshots} snapshots erased"
    )


for body in (new, rotate, rewrap, erase):
    command(app)(body)
