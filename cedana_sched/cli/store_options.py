"""Selection of a command's store: `--store`, the running engine's, or the folder in the state directory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import typer

from cedana_sched.cli.option_group import Options
from cedana_sched.model.errors import NotFoundError

if TYPE_CHECKING:
    from cedana_sched.cli.command_context import CommandContext
    from cedana_sched.local.views import EngineView
    from cedana_sched.store.snapshot_store import SnapshotStore
    from cedana_sched.store.storage_config import StorageConfig

STORE_VARIABLE = "CEDANA_SCHED_STORE"
KEY_FILE_VARIABLE = "CEDANA_SCHED_KEY_FILE"
FOLDER = "store"
"""Folder in the state directory, the engine's default store."""


def _store_option(default: str) -> Any:
    return Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="PLACE",
            help="/folder or s3://bucket/prefix.",
            show_default=default,
            envvar=STORE_VARIABLE,
            rich_help_panel="Store",
        ),
    ]


def _key_file_option(default: str) -> Any:
    return Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help="Seal snapshots with the keys of this file, and refuse what is not sealed; see 'keys new'.",
            show_default=default,
            envvar=KEY_FILE_VARIABLE,
            rich_help_panel="Store",
        ),
    ]


OPTIONS: Options = {
    "store": (_store_option("the running engine's, else STATE-DIR/store"), None),
    "s3_endpoint": (
        Annotated[
            str | None,
            typer.Option(
                "--s3-endpoint",
                metavar="URL",
                help="An S3-compatible server. Keys are read from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
                envvar="AWS_ENDPOINT_URL_S3",
                rich_help_panel="Store",
            ),
        ],
        None,
    ),
    "s3_region": (
        Annotated[
            str | None,
            typer.Option(
                "--s3-region", metavar="NAME", help="The bucket's.", envvar="AWS_REGION", rich_help_panel="Store"
            ),
        ],
        None,
    ),
    "s3_allow_http": (
        Annotated[
            bool,
            typer.Option(
                "--s3-allow-http",
                help="Permit an endpoint without TLS: memory then crosses the network in the clear.",
                rich_help_panel="Store",
            ),
        ],
        False,
    ),
    "key_file": (_key_file_option("the running engine's, else nothing is sealed"), None),
    "accept_unsealed": (
        Annotated[
            bool,
            typer.Option(
                "--accept-unsealed",
                help="With a key file: accept unsealed snapshots, which any writer may have forged.",
                rich_help_panel="Store",
            ),
        ],
        False,
    ),
}
"""The store options of a command with a `StoreOptions`."""

OPTIONS_OF_A_NEW_ENGINE: Options = {
    **OPTIONS,
    "store": (_store_option("STATE-DIR/store"), None),
    "key_file": (_key_file_option("nothing is sealed, and a sealed store is refused"), None),
}
"""The store options of a command with a `NewEngineStoreOptions`, which does not contact a running engine."""


@dataclass(frozen=True)
class StoreOptions:
    """The values of a command's store options."""

    options: ClassVar[Options] = OPTIONS
    uri: str | None
    endpoint: str | None = None
    region: str | None = None
    allow_http: bool = False
    key_file: Path | None = None
    accept_unsealed: bool = False

    @classmethod
    def pop_from_arguments(cls, given: dict[str, Any]) -> Self:
        """Pop the values of `OPTIONS` from a command's arguments."""
        return cls(*(given.pop(name) for name in OPTIONS))

    def configuration(self) -> StorageConfig:
        """Return the configuration of the named store; a folder ignores S3 settings of the environment.

        Raises:
            UsageError: an option is invalid.
        """
        from cedana_sched.store.storage_config import StorageConfig

        uri = self.uri or ""
        if uri.startswith("s3:"):
            options = {"endpoint": self.endpoint, "region": self.region, "allow_http": self.allow_http or None}
            place = StorageConfig.parse(uri, **options)
        else:
            place = StorageConfig.parse(_absolute_store_uri(uri))
        key_file = self.key_file.expanduser().absolute() if self.key_file else None
        return place.sealed_with(key_file, accept_unsealed=self.accept_unsealed)


class NewEngineStoreOptions(StoreOptions):
    """The store options of a command that starts an engine."""

    options: ClassVar[Options] = OPTIONS_OF_A_NEW_ENGINE


def store_configuration_for_engine(place: NewEngineStoreOptions, session: CommandContext) -> StorageConfig:
    """Return the store configuration of a new engine."""
    return replace(place, uri=place.uri or str(session.state_directory / FOLDER)).configuration()


def open_store(place: StoreOptions, session: CommandContext) -> SnapshotStore:
    """Open the store that the user's options select.

    Raises:
        NotFoundError: no store was named, no engine runs, and the state directory has no store.
        StoreError: the store cannot be used.
    """
    from cedana_sched.cli.logging import log_to_stderr
    from cedana_sched.store.snapshot_store import SnapshotStore
    from cedana_sched.store.store_presence import NOTES

    log_to_stderr()
    if place.uri is None:
        place = _store_of_engine(place, session) or replace(place, uri=_store_in_state_directory(session))
    notes = session.state_directory / NOTES
    return SnapshotStore.open(place.configuration(), notes=notes if notes.exists() else None)


def _store_of_engine(place: StoreOptions, session: CommandContext) -> StoreOptions | None:
    """Return the running engine's store and settings, overridden by options; None without an engine. No S3 keys."""
    from cedana_sched.local.client import EngineUnreachableError

    async def fetch() -> EngineView:
        async with session.client() as client:
            return await client.engine()

    try:
        view = asyncio.run(fetch())
    except EngineUnreachableError:
        return None
    endpoint = place.endpoint or view.store_endpoint
    allow_http = place.allow_http or endpoint == view.store_endpoint  # permitted by the engine's options
    key_file = place.key_file or (Path(view.key_file) if view.key_file else None)
    accept_unsealed = place.accept_unsealed or (view.accepts_unsealed and key_file is not None)
    return StoreOptions(view.store, endpoint, place.region or view.store_region, allow_http, key_file, accept_unsealed)


def _store_in_state_directory(session: CommandContext) -> str:
    folder = session.state_directory / FOLDER
    if not folder.exists():
        remedy = "name one with --store, or start the engine"
        raise NotFoundError("store", str(folder), "does not exist, and no engine runs", remedy=remedy)
    return str(folder.absolute())


def _absolute_store_uri(uri: str) -> str:
    """Return a path relative to the working directory as an absolute one; a URI is returned unchanged."""
    return uri if "://" in uri or uri.startswith("file:") else str(Path(uri).expanduser().absolute())
