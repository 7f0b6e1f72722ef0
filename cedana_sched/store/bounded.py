"""Reads no more of a namespace than fits memory: whoever may write there may lay any number of objects."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final

from cedana_sched.model.errors import StoreError
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Entry

MOST_LISTED: Final = 250_000
"""Objects of one kind that are kept of one namespace. They take 110 MB, or 560 with the longest keys."""
MOST_SAMPLED: Final = 125_000
"""Packs that one collection looks at, and as many markers of them: 8 TB."""
PART: Final = 10_000
"""Objects that are removed at once."""


class CrowdedNamespaceError(StoreError):
    """More lies in a namespace than is kept in memory; a person must look what it is."""


def kept(
    backend: Backend, namespace: str, folder: str, what: str, is_kept: Callable[[Entry], bool] = lambda _: True
) -> Iterator[Entry]:
    """The objects below a folder of a namespace that are to be kept; `what` they are. The others do not count.

    Raises:
        CrowdedNamespaceError: they are more than `MOST_LISTED`.
    """
    wanted = (entry for entry in backend.list(folder) if is_kept(entry))
    for number, entry in enumerate(wanted):
        if number == MOST_LISTED:
            raise crowded(namespace, f"more than {MOST_LISTED:,} {what}")
        yield entry


class Sample:
    """Of a folder's objects as many as fit memory: of a share of their names, which is another one in each run.

    So whatever somebody lays into the folder, each object has its turn, and nobody can choose a name that has none.
    """

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._salt = secrets.token_bytes(16)
        self._shares = 1
        self.entries: dict[str, Entry] = {}
        for entry in entries:
            if self.includes(name := name_of(entry)):
                self.entries[name] = entry
            while len(self.entries) > MOST_SAMPLED:
                self._shares *= 2
                self.entries = {name: entry for name, entry in self.entries.items() if self.includes(name)}

    @property
    def is_whole(self) -> bool:
        """Whether it is all that there is."""
        return self._shares == 1

    def includes(self, name: str) -> bool:
        """Whether an object of this name would be in it."""
        if self._shares == 1:
            return True
        digest = blake2b(name.encode("utf-8", "surrogateescape"), key=self._salt, digest_size=8).digest()
        return int.from_bytes(digest) % self._shares == 0


def name_of(entry: Entry) -> str:
    """The last part of its key."""
    return entry.key.rpartition("/")[2]


def remove_in_parts(backend: Backend, keys: Iterator[str]) -> int:
    """Remove any number of objects; how many."""
    removed = 0
    while part := list(islice(keys, PART)):
        backend.delete(part)
        removed += len(part)
    return removed


def crowded(namespace: str, what: str) -> CrowdedNamespaceError:
    """The error that says what a namespace has too much of."""
    return CrowdedNamespaceError(
        f"namespace {namespace} has {what} in the store, more than fits memory",
        remedy=f"remove what is nobody's below {layout.namespace_folder(namespace)}/, and see who could write it there",
    )
