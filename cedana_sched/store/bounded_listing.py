"""Bounded reads of a namespace: a client that may write there can create any number of objects."""

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
"""Objects of one kind that are held in memory of one namespace: 110 MB, or 560 MB with the longest keys."""
MOST_SAMPLED: Final = 125_000
"""Packs per collection, and as many markers of packs: 8 TB."""
PART: Final = 10_000
"""Objects deleted per request."""


class CrowdedNamespaceError(StoreError):
    """A namespace has more objects than fit in memory; an admin must look into the cause."""


def bounded_list(
    backend: Backend, namespace: str, folder: str, what: str, is_kept: Callable[[Entry], bool] = lambda _: True
) -> Iterator[Entry]:
    """Yield the objects below a folder of a namespace that `is_kept`; `what` names them. Others are not counted.

    Raises:
        CrowdedNamespaceError: there are more than `MOST_LISTED`.
    """
    wanted = (entry for entry in backend.list(folder) if is_kept(entry))
    for number, entry in enumerate(wanted):
        if number == MOST_LISTED:
            raise crowded_error(namespace, f"more than {MOST_LISTED:,} {what}")
        yield entry


class Sample:
    """A sample of a folder's objects that fits in memory: a share of the names, another one in each run.

    Whatever objects a client creates, each is sampled eventually, and no name can be chosen that is never sampled.
    """

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._salt = secrets.token_bytes(16)
        self._shares = 1
        self.entries: dict[str, Entry] = {}
        for entry in entries:
            if self.includes(name := last_key_part(entry)):
                self.entries[name] = entry
            while len(self.entries) > MOST_SAMPLED:
                self._shares *= 2
                self.entries = {name: entry for name, entry in self.entries.items() if self.includes(name)}

    @property
    def is_whole(self) -> bool:
        """Whether the sample has all objects."""
        return self._shares == 1

    def includes(self, name: str) -> bool:
        """Return whether the sample has an object of this name."""
        if self._shares == 1:
            return True
        digest = blake2b(name.encode("utf-8", "surrogateescape"), key=self._salt, digest_size=8).digest()
        return int.from_bytes(digest) % self._shares == 0


def last_key_part(entry: Entry) -> str:
    """Return the last part of the key."""
    return entry.key.rpartition("/")[2]


def remove_in_parts(backend: Backend, keys: Iterator[str]) -> int:
    """Delete any number of objects; return how many."""
    removed = 0
    while part := list(islice(keys, PART)):
        backend.delete(part)
        removed += len(part)
    return removed


def crowded_error(namespace: str, what: str) -> CrowdedNamespaceError:
    """Return the error that names what a namespace has too much of."""
    return CrowdedNamespaceError(
        f"namespace {namespace} has {what} in the store, more than fits memory",
        remedy=f"remove foreign objects below {layout.namespace_folder(namespace)}/, "
        "and find out who could write them there",
    )
