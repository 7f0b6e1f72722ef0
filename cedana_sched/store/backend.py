"""What the store asks of a place that keeps objects; a POSIX folder and an S3 bucket both give it.

Keys are relative paths with `/`. Every implementation raises only `StoreError`s: `StoreUnavailableError` where the
same call may work later, `StoreDeniedError` where a person must act first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from cedana_sched.model.errors import IntegrityError, StoreError

Buffer = bytes | bytearray | memoryview
TRIALS = "probe"
"""The folder of what is written only to see what becomes of it."""


class MissingObjectError(StoreError):
    """There is no object under this key; callers say what that means for them."""


def oversized(key: str, size: int, at_most: int) -> IntegrityError:
    """The error for an object that is larger than any of its kind: somebody else has written it."""
    return IntegrityError(
        f"object {key} has {size:,} bytes, more than {at_most:,}",
        remedy="remove it, and see who could write it there",
    )


class Entry(NamedTuple):
    """An object that is there. `modified` is by the store's own clock, seconds since the epoch."""

    key: str
    size: int
    modified: float


class Sink(Protocol):
    """A large object being written. Nothing is visible before `finish` has returned."""

    def write(self, data: Buffer) -> None:
        """Take the bytes; blocks while the store is behind. The buffer may be reused afterwards."""

    def finish(self) -> None:
        """Make the object durable and visible."""

    def abort(self) -> None:
        """Throw away what was written; never raises."""


class Capabilities(NamedTuple):
    """What was found by trying, never by asking the vendor."""

    conditional_create: bool
    """A write that must not replace is refused when the object exists."""
    ranges: bool
    """A part of an object can be read."""


class Backend(Protocol):
    """Objects under one root. All calls block and may be made from any thread."""

    @property
    def description(self) -> str:
        """The place in words, for errors; holds no secret."""

    @property
    def trials(self) -> str:
        """The folder of what is written only to see what becomes of it."""
        return TRIALS

    def within(self, folder: str) -> Backend:  # noqa: ARG002  # only some tell folders apart
        """The same place, as whoever may write below `folder` alone tries it and reads its clock."""
        return self

    def put(self, key: str, data: Buffer) -> None:
        """Write a small object durably, replacing it if it exists."""

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Write it durably unless it exists; whether it was written.

        Atomic only where `Capabilities.conditional_create` was found.
        """

    def open_sink(self, key: str) -> Sink:
        """Begin a large object."""

    def get(self, key: str, *, at_most: int) -> bytes:
        """The whole object. `at_most`: bytes that one of its kind may have; anybody may have written it.

        Raises:
            MissingObjectError: there is none.
            IntegrityError: it is larger; nothing of it was read.
        """

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Up to `length` bytes from `offset`; fewer where the object ends.

        Raises:
            MissingObjectError: there is no such object.
        """

    def list(self, prefix: str) -> Iterator[Entry]:
        """Every object whose key lies below the folder `prefix`."""

    def folders(self, prefix: str) -> tuple[str, ...]:
        """The names of the folders directly below the folder `prefix`."""

    def stat(self, key: str) -> Entry | None:
        """The object, or None."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove the objects; those that are not there are no error."""

    def now(self) -> float:
        """The store's clock, by which `Entry.modified` is to be judged."""

    def sweep_partial(self, prefix: str, older_than_seconds: float, spare: Callable[[str], bool]) -> int:
        """Remove what cut-off uploads below `prefix` left behind; how many.

        `spare` is asked with the key that the object was to have, and says whether its writer is still at work.
        """
