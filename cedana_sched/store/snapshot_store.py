"""The public interface of the store: begin, list, open, verify, remove, check.

All calls block and are thread-safe; from an event loop use `asyncio.to_thread`. Instances have no state of importance:
the store has all of it, and any number of processes may use it concurrently.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Collection
from pathlib import Path

from cedana_sched.model.errors import CommitConflictError, IntegrityError, NewerFormatError
from cedana_sched.model.identity import Identity, SnapshotRef, name_of_namespace
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.manifest import SnapshotSummary
from cedana_sched.model.policy import Compression, Retention
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.bounded_listing import CrowdedNamespaceError
from cedana_sched.store.capabilities import capabilities_of, probe_capabilities
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.check import StoreReport, check_store
from cedana_sched.store.chunk_pipeline import PACK_BYTES
from cedana_sched.store.collection_turns import TurnResult, collect_if_due
from cedana_sched.store.credential_client import CredentialClient
from cedana_sched.store.credential_renewal import CredentialsRefusedError
from cedana_sched.store.erasure import ErasureReport, erase_namespace
from cedana_sched.store.garbage import GRACE_SECONDS, GarbageReport, collect_garbage, condemned_packs
from cedana_sched.store.intents import TIME_TO_LIVE_SECONDS, IntentLease
from cedana_sched.store.lineage import abandoned_generations
from cedana_sched.store.page_fingerprint_cache import CACHE_BYTES, FingerprintCache
from cedana_sched.store.page_index import load_page_index
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.previous_generation import load_previous, load_previous_manifest
from cedana_sched.store.reader import Progress, SnapshotReader
from cedana_sched.store.retention import expired_snapshots, remove_snapshot, spare_last_whole
from cedana_sched.store.s3 import S3Backend
from cedana_sched.store.scoped import ScopedBackend
from cedana_sched.store.sealing.key_file import KeyFile
from cedana_sched.store.sealing.seal_selection import SealSelection
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.verify import VerifyReport, verify_snapshot
from cedana_sched.store.writer import SnapshotWriter


class SnapshotStore:
    """Snapshots at one place; see `open`."""

    def __init__(
        self,
        backend: Backend,
        *,
        compression: Compression = Compression.AUTO,
        cache_directory: Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        pack_bytes: int = PACK_BYTES,
        time_to_live_seconds: float = TIME_TO_LIVE_SECONDS,
        seals: SealSelection | None = None,
    ) -> None:
        self._backend = backend
        self._seals = seals or SealSelection(backend)
        self._compression = compression
        self._cache = FingerprintCache(cache_directory, cache_bytes)
        self._pack_bytes = pack_bytes
        self._time_to_live = time_to_live_seconds
        self._catalogue = Catalogue(backend, self._seals)

    @classmethod
    def open(
        cls,
        config: StorageConfig,
        *,
        compression: Compression | str = Compression.AUTO,
        cache_directory: Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        pack_bytes: int = PACK_BYTES,
        notes: Path | None = None,
        collecting: bool = False,
    ) -> SnapshotStore:
        """Open the store at a place.

        No request is sent to a bucket; a folder is created if only its last part is missing.

        Args:
            config: the place, and the keys that seal it.
            compression: of the snapshots written through this object.
            cache_directory: a folder of this node that speeds up the next generation; None: no cache.
            cache_bytes: bound of that folder; the least recently used copies are evicted first.
            notes: a folder of this node with notes of the stores seen; see `store_presence`.
            pack_bytes: size at which a pack is closed; S3 stores need at least some MiB to be efficient.
            collecting: where credentials are issued per namespace, request those for garbage collection only.

        Raises:
            StoreDeniedError: the folder cannot be used.
            UsageError: the key file cannot.
        """
        backend = open_backend(config, notes, collecting=collecting)
        return cls(
            backend,
            compression=Compression(compression),
            cache_directory=cache_directory,
            cache_bytes=cache_bytes,
            pack_bytes=pack_bytes,
            seals=_seals_from_config(config, backend),
        )

    @property
    def description(self) -> str:
        """Description of the place."""
        return self._backend.description

    def require_keys(self, namespaces: Collection[str]) -> None:
        """See `SealSelection.require_keys`. Not for a process with credentials of single namespaces.

        Raises:
            SealedError: the keys that seal the store are not available.
            StoreError: the store failed.
        """
        self._seals.require_keys(namespaces)

    def begin(self, identity: Identity, *, checkpoint_uid: str, lineage: Lineage | None = None) -> SnapshotWriter:
        """Start the next generation of an identity. Without a `lineage` it continues the newest one.

        Raises:
            CommitConflictError: the checkpoint has committed a snapshot already; `find_committed` returns it.
            SealedError: the namespace is sealed, and its key is not available.
            StoreError: the store cannot be written.
        """
        if (committed := self.find_committed(identity, checkpoint_uid)) is not None:
            sentence = f"checkpoint {checkpoint_uid} has committed {committed.ref} already"
            raise CommitConflictError(sentence, remedy="use that snapshot")
        seal = self._seals.for_writing(identity.namespace)
        within = self._backend.restricted_to_folder(layout.namespace_folder(identity.namespace))
        conditional = capabilities_of(within).conditional_create
        writer = uuid.uuid4().hex
        lease = IntentLease(self._backend, writer, identity, self._time_to_live)
        try:
            generations = self._catalogue.newest_generations_of(identity)
            base = load_previous_manifest(self._catalogue, generations.latest_committed_of(identity))
            packs = base.summary.packs if base is not None else ()
            if packs:
                lease.announce_packs(packs)
            unusable = condemned_packs(self._backend, identity.namespace, packs)
            previous = load_previous(self._backend, base, self._cache, unusable, seal)
            return SnapshotWriter(
                self._backend,
                self._catalogue,
                SnapshotRef(identity, generations.next_number(identity)),
                checkpoint_uid=checkpoint_uid,
                writer=writer,
                lease=lease,
                seed=base.seed if base is not None else secrets.randbits(63),
                previous=previous,
                compression=self._compression,
                conditional_create=conditional,
                cache=self._cache,
                pack_bytes=self._pack_bytes,
                run=lineage.run if lineage is not None else "",
                abandons=abandoned_generations(self._catalogue, generations, identity, lineage),
                seals=self._seals,
                seal=seal,
            )
        except BaseException:
            lease.release()
            raise

    def find_committed(self, identity: Identity, checkpoint_uid: str) -> SnapshotSummary | None:
        """Return the snapshot that a checkpoint has committed, or None."""
        summaries = self._catalogue.newest_readable_summaries(self._catalogue.newest_generations_of(identity))
        return next((one for one in summaries if one.checkpoint_uid == checkpoint_uid), None)

    def namespaces(self, name: str | None = None) -> tuple[str, ...]:
        """Return the store's names of the namespaces of a name: all if it is None, one if the name has a uid."""
        found = self._backend.folder_names(layout.ROOT)
        return tuple(one for one in found if name is None or name in (one, name_of_namespace(one)))

    def list(self, namespace: str | None = None, id: str | None = None) -> list[SnapshotSummary]:  # noqa: A002
        """Return the committed snapshots, newest last; optionally of the namespaces of a name, and of one id."""
        found = [
            summary
            for one in self.namespaces(namespace)
            for summary in self._catalogue.readable_summaries(
                self._catalogue.list_generations(layout.snapshots_folder(one, id))
            )
        ]
        return sorted(found, key=lambda one: (one.committed_at, one.ref))

    def committed_snapshots(self) -> tuple[SnapshotRef, ...]:
        """Return every committed snapshot, also those with an unreadable manifest."""
        folders = map(layout.snapshots_folder, self.namespaces())
        return tuple(sorted(ref for folder in folders for ref in self._catalogue.list_generations(folder).committed))

    def latest_snapshot_of(
        self,
        identity: Identity,
        *,
        excluding: Collection[str] = (),
        avoiding: Collection[int] = (),
        past_newer_formats: bool = True,
    ) -> SnapshotSummary | None:
        """Return the newest committed, readable snapshot of an identity; None if there are no snapshots at all.

        Costs one listing of the identity's own folder, and one read unless the newest is unusable. Snapshots of the
        checkpoints in `excluding` (uids), and the generations in `avoiding`, are skipped; so are those that a newer
        version wrote, unless `past_newer_formats` is false.

        Raises:
            StoreUnavailableError: the store is unavailable.
            SealedError: the newest is sealed, and its key is not available.
            UnsealedError: the newest is not sealed, and it must be.
            IntegrityError: none is readable, and the newest is damaged.
            NewerFormatError: a newer version wrote the newest, and it is not skipped, or no other is readable.
        """
        generations = self._catalogue.newest_generations_of(identity)
        unreadable: list[IntegrityError | NewerFormatError] = []
        for ref in sorted(generations.committed, reverse=True):
            if ref.generation in avoiding:
                continue
            try:
                summary = self._catalogue.summary_unless_removed(ref, generations.committed[ref])
            except (IntegrityError, NewerFormatError) as error:
                if isinstance(error, NewerFormatError) and not past_newer_formats:
                    raise
                unreadable.append(error)
                continue
            if summary is not None and summary.checkpoint_uid not in excluding:
                return summary
        if unreadable:
            raise unreadable[0]
        return None

    def require_store_exists(self) -> None:
        """Raise if the folder has no store although a snapshot is known to exist.

        Raises:
            StoreUnavailableError: the store is unavailable.
        """
        if isinstance(self._backend, PosixBackend):
            self._backend.require_store_exists()

    def manifest_digest(self, ref: SnapshotRef) -> str:
        """Return the digest of a committed snapshot's manifest; raises like `open_snapshot`."""
        return self._catalogue.manifest_and_digest(ref)[1]

    def open_snapshot(self, ref: SnapshotRef, digest: str = "") -> SnapshotReader:
        """Open a snapshot, its manifest verified, also against a `digest` if given.

        Raises:
            NotFoundError: the snapshot does not exist.
            IntegrityError: its manifest is damaged, or has another digest.
            NewerFormatError: the manifest has a newer format.
            SealedError: the manifest is sealed, and its key is not available.
            UnsealedError: the manifest is not sealed, and it must be.
        """
        manifest, found = self._catalogue.manifest_and_digest(ref)
        if digest and found != digest:
            sentence = (
                f"snapshot {ref}: its manifest is another one than was committed: {found:.16}…, not {digest:.16}…"
            )
            raise IntegrityError(sentence, remedy="the store was modified; restore an older generation")
        return SnapshotReader(self._backend, manifest, self._seals.seal_of(manifest))

    def verify(self, ref: SnapshotRef, progress: Progress | None = None) -> VerifyReport:
        """Read every chunk of a snapshot; raises like `open_snapshot`; damaged chunks are in the report."""
        manifest = self._catalogue.read_manifest(ref)
        return verify_snapshot(self._backend, manifest, progress, seal=self._seals.seal_of(manifest))

    def remove(self, ref: SnapshotRef) -> None:
        """Remove a snapshot; later garbage collections delete its bytes.

        Raises:
            NotFoundError: the snapshot does not exist.
        """
        self._cache.drop_snapshot(ref)
        remove_snapshot(self._backend, self._catalogue, ref)

    def apply_retention(
        self, identity: Identity, retention: Retention, now: float | None = None, *, spare: Collection[int] = ()
    ) -> tuple[SnapshotRef, ...]:
        """Remove the generations that the policy expires, and return them. `now` is in epoch seconds.

        Generations in `spare` are in use and stay, regardless of the policy. So does the newest whole one, if every
        newer one is damaged.
        """
        summaries = list(self._catalogue.newest_readable_summaries(self._catalogue.newest_generations_of(identity)))
        expired_now = expired_snapshots(summaries, retention, time.time() if now is None else now)
        gone = [ref for ref in expired_now if ref.generation not in spare]
        if gone:
            kept = {one.ref for one in summaries}.difference(gone)
            gone = spare_last_whole(self._backend, self._catalogue, kept, gone)
        for ref in gone:
            self.remove(ref)
        return tuple(gone)

    def collect_garbage(
        self, namespace: str | None = None, *, grace_seconds: float = GRACE_SECONDS
    ) -> tuple[GarbageReport, ...]:
        """Collect garbage once in the namespaces of a name or all; see `garbage.py` for the grace period.

        Raises:
            CrowdedNamespaceError: a namespace has more than fits in memory; the others were collected.
        """
        reports, crowded = [], None
        for one in self.namespaces(namespace):
            try:
                reports.append(
                    collect_garbage(
                        self._backend,
                        self._catalogue,
                        one,
                        grace_seconds=grace_seconds,
                        time_to_live_seconds=self._time_to_live,
                    )
                )
            except CrowdedNamespaceError as error:
                crowded = error
        if crowded is not None:
            raise crowded
        return tuple(reports)

    def collect_in_turn(self, namespace: str, every_seconds: float) -> TurnResult:
        """Collect a namespace, unless a node runs, or ran less than `every_seconds` ago; see `collection_turns`."""
        return collect_if_due(
            self._backend,
            namespace,
            every_seconds,
            lambda: collect_garbage(self._backend, self._catalogue, namespace, time_to_live_seconds=self._time_to_live),
        )

    def prefetch_for_next_generation(self, ref: SnapshotRef) -> None:
        """Cache on this node what the generation after `ref` reuses, so that nothing is fetched while frozen.

        Raises:
            StoreError: the store cannot be read, or the manifest is damaged.
            NotFoundError: the snapshot does not exist.
        """
        if self._cache.has_copy(ref):
            return
        manifest = self._catalogue.read_manifest(ref)
        if manifest.page_index is not None:
            writer, seal = manifest.summary.writer, self._seals.seal_of(manifest)
            flat = load_page_index(self._backend, self._cache, ref, writer, manifest.page_index, seal)
            if flat is not None:
                flat.close()
                self._cache.keep_only(ref, manifest.summary.writer)

    def tidy_cache(self) -> None:
        """Evict this node's cached copies of snapshots that were removed from the store.

        Copies of namespaces to which this node is no longer entitled are evicted when their room is needed.

        Raises:
            StoreUnavailableError: the store failed; nothing is evicted because of that.
        """
        self._cache.evict_to_limit()
        for copy in self._cache.cached_copies():
            try:
                is_there = copy.ref in self._catalogue.files_of_generation(copy.ref).committed
            except CredentialsRefusedError:
                continue
            if not is_there:
                self._cache.forget_if_old(copy)

    def rewrap(self, namespace: str | None = None) -> dict[str, int]:
        """Rewrap data keys with the newest wrapping key; return how many, by namespace.

        Raises:
            SealedError: a required key is not available, or there is none.
        """
        return {one: self._seals.rewrap(one) for one in self.namespaces(namespace)}

    def erase_sealed_snapshots(self, namespace: str) -> ErasureReport:
        """Erase the sealed snapshots of a namespace, irreversibly; the name must be complete and identify one.

        Raises:
            NotFoundError: nothing in it is sealed.
        """
        others = tuple(one for one in self.namespaces(namespace) if one != namespace)
        return erase_namespace(self._backend, self._catalogue, namespace, others)

    def probe_access(self) -> None:
        """Write, read and delete a few bytes, a cheaper check than `check`.

        Raises:
            StoreDeniedError: an admin must act: wrong keys, no such bucket, a read-only folder.
            StoreUnavailableError: the store is unreachable, or full.
        """
        probe_capabilities(self._backend)

    def check_storage(self) -> StoreReport:
        """Try everything that the store requires, and measure it.

        Raises:
            StoreDeniedError: an admin must act: wrong keys, no such bucket, a read-only folder.
            StoreUnavailableError: the store is unreachable, or full.
        """
        return check_store(self._backend)


def _seals_from_config(config: StorageConfig, backend: Backend) -> SealSelection:
    if config.key_file is None:
        return SealSelection(backend)
    keys = KeyFile(config.key_file)
    keys.newest_key_id()  # detects an unusable file now, not while a workload is frozen
    return SealSelection(backend, keys, accepts_unsealed=config.accept_unsealed, writes_unsealed=config.write_unsealed)


def open_backend(config: StorageConfig, notes: Path | None = None, *, collecting: bool = False) -> Backend:
    """Return the backend of a configuration; arguments as in `SnapshotStore.open`."""
    if config.path is not None:
        return PosixBackend(config.path, notes)
    assert config.s3 is not None  # noqa: S101 - StorageConfig allows nothing else
    if config.s3.credentials is not None:
        return ScopedBackend(config.s3, CredentialClient(config.s3.credentials, collecting=collecting).fetch)
    return S3Backend(config.s3)
