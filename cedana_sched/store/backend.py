"""The object storage that the store requires, implemented by a POSIX folder and an S3 bucket.

Keys are relative paths with `/`. Implementations raise only `StoreError`s: `StoreUnavailableError` if a retry may
succeed, `StoreDeniedError` if an admin must act first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from cedana_sched.model.errors import IntegrityError, StoreError

Buffer = bytes | bytearray | memoryview
TRIALS = "probe"
"""Folder of trial objects."""


class MissingObjectError(StoreError):
    """No object has this key; callers translate the error."""


def oversized_error(key: str, size: int, at_most: int) -> IntegrityError:
    """Return the error for an object larger than any of its kind: another program has written it."""
    return IntegrityError(
        f"object {key} has {size:,} bytes, more than {at_most:,}",
        remedy="remove it, and see who could write it there",
    )


class Entry(NamedTuple):
    """An existing object. `modified` is by the store's own clock, in epoch seconds."""

    key: str
    size: int
    modified: float


class Sink(Protocol):
    """A large object being written. Nothing is visible before `finish` has returned."""

    def write(self, data: Buffer) -> None:
        """Accept data; blocks while the store is slower. The buffer may be reused afterwards."""

    def finish(self) -> None:
        """Make the object durable and visible."""

    def abort(self) -> None:
        """Discard the data; never raises."""


class Capabilities(NamedTuple):
    """Capabilities found by trial, not by the vendor's documentation."""

    conditional_create: bool
    """A write that must not replace is refused if the object exists."""
    ranges: bool
    """A range of an object can be read."""


class Backend(Protocol):
    """Objects under one root. All calls block and are thread-safe."""

    @property
    def description(self) -> str:
        """Description of the place for errors; no secret."""

    @property
    def trials_folder(self) -> str:
        """Folder of trial objects."""
        return TRIALS

    def restricted_to_folder(self, folder: str) -> Backend:  # noqa: ARG002  # only some distinguish folders
        """Return the same place for a client that may write below `folder` only, for trials and the clock."""
        return self

    def put(self, key: str, data: Buffer) -> None:
        """Write a small object durably, replacing it if it exists."""

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Write an object durably unless it exists; return whether it was written.

        Atomic only with `Capabilities.conditional_create`.
        """

    def open_sink(self, key: str) -> Sink:
        """Start a large object."""

    def get(self, key: str, *, at_most: int) -> bytes:
        """Read a whole object. `at_most` bounds its bytes, because any client may have written it.

        Raises:
            MissingObjectError: the object does not exist.
            IntegrityError: the object is larger; nothing was read.
        """

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Read up to `length` bytes from `offset`; fewer at the object's end.

        Raises:
            MissingObjectError: the object does not exist.
        """

    def list(self, prefix: str) -> Iterator[Entry]:
        """Yield every object below the folder `prefix`."""

    def folder_names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of the folders directly below the folder `prefix`."""

    def stat(self, key: str) -> Entry | None:
        """Return the object's entry, or None."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""

    def store_time(self) -> float:
        """Return the store's time, to compare with `Entry.modified`."""

    def sweep_partial(self, prefix: str, older_than_seconds: float, spare: Callable[[str], bool]) -> int:
        """Remove what interrupted uploads below `prefix` left; return how many.

        `spare` receives the intended key, and returns whether its writer is alive.
        """
