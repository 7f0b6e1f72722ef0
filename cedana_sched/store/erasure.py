"""Erasure: makes a namespace's sealed snapshots unreadable at once, in every existing copy."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cedana_sched.model.errors import NotFoundError
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, MissingObjectError
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.manifest_format import HEAD_BYTES
from cedana_sched.store.sealing.data_keys import erase_data_keys
from cedana_sched.store.sealing.sealed_manifest_format import is_sealed

_SHOWN = 10


class ErasureReport(msgspec.Struct, frozen=True):
    """What was erased in one namespace."""

    namespace: str
    data_keys: int
    snapshots: int


def erase_namespace(
    backend: Backend, catalogue: Catalogue, namespace: str, others: Sequence[str] = ()
) -> ErasureReport:
    """Delete the data keys, which is the erasure; then the manifests that have become unreadable.

    Unsealed snapshots stay. The next garbage collections delete the packs. Idempotent; repeat an interrupted one.
    `others`: namespaces of that name, named in the error if nothing is found.

    Raises:
        NotFoundError: nothing in it is sealed.
    """
    data_keys = erase_data_keys(backend, namespace)
    removed = 0
    for ref, entry in catalogue.list_generations(layout.snapshots_folder(namespace)).committed.items():
        try:
            head = backend.get_range(entry.key, 0, HEAD_BYTES)
        except MissingObjectError:
            continue
        if is_sealed(head):
            backend.put(layout.removed_key(ref), b"")
            backend.delete([entry.key])
            removed += 1
    if not data_keys and not removed:
        meant = f"name one of {', '.join(others[:_SHOWN])}" if others else "name another"
        remedy = f"{meant}; 'snapshots rm' removes snapshots that are not sealed"
        raise NotFoundError("namespace", namespace, "has nothing that is sealed", remedy=remedy)
    return ErasureReport(namespace, data_keys, removed)
