"""The commit: exactly one of all writers of a generation commits its manifest, and all readers agree which.

With conditional create (tried, not assumed), the manifest is created under a name without the writer, and the store
decides.

Without it, the writer claims first: it writes `<generation>.<writer>.claim`, *then* lists the claims. If another live
writer's claim exists, the writer withdraws and does not commit the generation. Two writers cannot both find no other
claim: one claim was written later, and its writer lists after that. Only a writer without rivals writes its manifest,
under a name of its own, and lists again; if a writer had slept beyond its lease between the two steps while another one
passed it, readers and both writers choose the manifest with the earlier date of the store, which no later write can
change.
"""

from __future__ import annotations

import structlog

from cedana_sched.model.errors import (
    CommitConflictError,
    IntegrityError,
    NotFoundError,
    StoreError,
    StoreUnavailableError,
    UnsealedError,
)
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.bounded_listing import bounded_list
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.intents import read_intents
from cedana_sched.store.previous_generation import require_unused_number

_log = structlog.get_logger(__name__)


def commit_manifest(
    backend: Backend, catalogue: Catalogue, ref: SnapshotRef, writer: str, data: bytes, *, conditional: bool
) -> None:
    """Make the generation visible, or raise and leave nothing visible.

    Raises:
        CommitConflictError: another writer has committed it.
        StoreError: the store failed, and whether the manifest was written could not be read: it may yet appear.
    """
    require_unused_number(catalogue, ref)
    try:
        if conditional:
            _create(backend, catalogue, ref, writer, data)
        else:
            _claim_and_write(backend, catalogue, ref, writer, data)
    except StoreUnavailableError:
        if _committed_writer(catalogue, ref) != writer:
            raise


def _create(backend: Backend, catalogue: Catalogue, ref: SnapshotRef, writer: str, data: bytes) -> None:
    """Create the manifest; after a refusal, read its writer: our own write may have succeeded without a response."""
    if backend.put_if_absent(layout.manifest_key(ref), data) or _committed_writer(catalogue, ref) == writer:
        return
    raise _conflict(ref)


def _claim_and_write(backend: Backend, catalogue: Catalogue, ref: SnapshotRef, writer: str, data: bytes) -> None:
    claim, manifest = layout.claim_key(ref, writer), layout.manifest_key(ref, writer)
    try:
        backend.put(claim, b"")
        if _has_other_claim(backend, ref, writer):
            raise _conflict(ref)
        require_unused_number(catalogue, ref)
        backend.put(manifest, data)
        if _committed_writer(catalogue, ref) != writer:
            backend.delete([manifest])
            raise _conflict(ref)
    finally:
        _withdraw(backend, claim)


def _withdraw(backend: Backend, claim: str) -> None:
    """Delete the claim, best-effort: it is harmless once its writer's intent is gone."""
    try:
        backend.delete([claim])
    except StoreError as error:
        _log.info("claim_left_behind", key=claim, error=str(error))


def _has_other_claim(backend: Backend, ref: SnapshotRef, writer: str) -> bool:
    claimants: set[str] = set()
    namespace = ref.identity.namespace
    for entry in bounded_list(backend, namespace, layout.identity_folder(ref.identity), "files of one workload"):
        file = layout.parse_generation_key(entry.key)
        if file is not None and file.writer is not None and (file.kind, file.generation) == ("claim", ref.generation):
            claimants.add(file.writer)
    claimants.discard(writer)
    if not claimants:
        return False
    now = backend.restricted_to_folder(layout.namespace_folder(namespace)).store_time()
    return not claimants.isdisjoint(read_intents(backend, namespace, now=now, of=claimants).live_writers)


def _committed_writer(catalogue: Catalogue, ref: SnapshotRef) -> str | None:
    entry = catalogue.files_of_generation(ref).committed.get(ref)
    if entry is None:
        return None
    try:
        return catalogue.read_summary(ref, entry).writer
    except (IntegrityError, NotFoundError, UnsealedError):
        return None


def _conflict(ref: SnapshotRef) -> CommitConflictError:
    return CommitConflictError(f"another writer has committed {ref}", remedy="use it, or begin the next generation")
