"""Reads no more of a namespace than fits memory: whoever may write there may lay any number of objects, of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cedana_sched.model.errors import IntegrityError, StoreError
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Entry, MissingObjectError

MOST_LISTED: Final = 250_000
"""Objects of one namespace that one listing keeps: packs of 16 TB. They take 110 MB, or 560 with the longest keys."""


class CrowdedNamespaceError(StoreError):
    """More lies in a namespace than is kept in memory; a person must look what it is."""


class Listing:
    """The folders of one namespace, listed for one purpose; they are counted together."""

    def __init__(self, backend: Backend, namespace: str) -> None:
        self._backend = backend
        self._namespace = namespace
        self._listed = 0

    def of(self, folder: str, is_kept: Callable[[Entry], bool] | None = None) -> Iterator[Entry]:
        """Every object below a folder of the namespace, or those that are kept; the others do not count.

        Raises:
            CrowdedNamespaceError: with them there would be more than `MOST_LISTED`.
        """
        for entry in self._backend.list(folder):
            if is_kept is not None and not is_kept(entry):
                continue
            self._listed += 1
            if self._listed > MOST_LISTED:
                raise crowded(self._namespace, f"more than {MOST_LISTED:,} objects")
            yield entry


def crowded(namespace: str, what: str) -> CrowdedNamespaceError:
    """The error that says what a namespace has too much of."""
    return CrowdedNamespaceError(
        f"namespace {namespace} has {what} in the store, more than fits memory",
        remedy=f"remove what is nobody's below {layout.namespace_folder(namespace)}/, and see who could write it there",
    )


def get_bounded(backend: Backend, key: str, most_bytes: int) -> bytes:
    """The whole object; cut off where it has grown beyond that since it was looked at.

    Raises:
        MissingObjectError: there is none.
        IntegrityError: it is larger than anything that we write there.
    """
    found = backend.stat(key)
    if found is None:
        raise MissingObjectError(f"there is no object {key}")
    if found.size > most_bytes:
        raise IntegrityError(f"object {key} has {found.size:,} bytes, more than {most_bytes:,}")
    return bytes(backend.get_range(key, 0, most_bytes)) if found.size else b""
