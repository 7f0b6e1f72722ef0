"""The store as everybody else sees it: begin, list, open, verify, remove, check.

All calls block and may be made from any thread; from an event loop use `asyncio.to_thread`. Nothing here keeps state
that matters: what is in the store is all there is, and any number of processes may use it side by side.
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
from cedana_sched.store.bounded import CrowdedNamespaceError
from cedana_sched.store.capabilities import capabilities_of, probe
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.check import StoreReport, check_store
from cedana_sched.store.credential_client import CredentialClient
from cedana_sched.store.erasure import Erasure, erase_namespace
from cedana_sched.store.garbage import GRACE_SECONDS, GarbageReport, collect_garbage, condemned_packs
from cedana_sched.store.intents import TIME_TO_LIVE_SECONDS, Lease
from cedana_sched.store.lineage import abandoned
from cedana_sched.store.location import StorageConfig
from cedana_sched.store.node_cache import CACHE_BYTES, NodeCache
from cedana_sched.store.packs import TARGET_BYTES
from cedana_sched.store.page_index import load_page_index
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.previous import load_previous, load_previous_manifest
from cedana_sched.store.reader import Progress, SnapshotReader
from cedana_sched.store.retention import expired, remove_snapshot, without_last_whole
from cedana_sched.store.s3 import S3Backend
from cedana_sched.store.scoped import ScopedBackend
from cedana_sched.store.sealing.key_file import KeyFile
from cedana_sched.store.sealing.seals import Seals
from cedana_sched.store.session_credentials import CredentialsRefusedError
from cedana_sched.store.turns import Turn, take_turn
from cedana_sched.store.verify import VerifyReport, verify_snapshot
from cedana_sched.store.writer import SnapshotWriter


class SnapshotStore:
    """Snapshots at one place. `open` makes it."""

    def __init__(
        self,
        backend: Backend,
        *,
        compression: Compression = Compression.AUTO,
        cache_directory: Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        pack_bytes: int = TARGET_BYTES,
        time_to_live_seconds: float = TIME_TO_LIVE_SECONDS,
        seals: Seals | None = None,
    ) -> None:
        self._backend = backend
        self._seals = seals or Seals(backend)
        self._compression = compression
        self._cache = NodeCache(cache_directory, cache_bytes)
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
        pack_bytes: int = TARGET_BYTES,
        notes: Path | None = None,
        collecting: bool = False,
    ) -> SnapshotStore:
        """The store at a place. A bucket is not asked anything yet; a folder is created if only it is missing.

        Args:
            config: where, and the keys that seal it.
            compression: how the snapshots written through this object are compressed.
            cache_directory: a folder of this node for what speeds up the next generation; None keeps nothing.
            cache_bytes: the most that folder may hold; what was used longest ago goes first.
            notes: a folder of this node where it is noted that a store was seen; see `mark`.
            pack_bytes: size at which a pack is closed; the smallest that S3 stores are happy with is some MiB.
            collecting: where credentials of namespaces are fetched, those with which garbage can be collected only.

        Raises:
            StoreDeniedError: the folder cannot be used.
            UsageError: the file of keys cannot.
        """
        backend = open_backend(config, notes, collecting=collecting)
        return cls(
            backend,
            compression=Compression(compression),
            cache_directory=cache_directory,
            cache_bytes=cache_bytes,
            pack_bytes=pack_bytes,
            seals=_seals_of(config, backend),
        )

    @property
    def description(self) -> str:
        """The place in words."""
        return self._backend.description

    def require_keys(self, namespaces: Collection[str]) -> None:
        """See `Seals.require_keys`. Not for a process with credentials of single namespaces.

        Raises:
            SealedError: the keys that seal the store are not here.
            StoreError: the store cannot be asked.
        """
        self._seals.require_keys(namespaces)

    def begin(self, identity: Identity, *, checkpoint_uid: str, lineage: Lineage | None = None) -> SnapshotWriter:
        """Start the next generation of an identity. Without a `lineage` it continues the newest one.

        Raises:
            CommitConflictError: the checkpoint has committed a snapshot already; `find_committed` returns it.
            SealedError: the namespace is sealed, and its key is not here.
            StoreError: the store cannot be written.
        """
        if (committed := self.find_committed(identity, checkpoint_uid)) is not None:
            sentence = f"checkpoint {checkpoint_uid} has committed {committed.ref} already"
            raise CommitConflictError(sentence, remedy="use that snapshot")
        seal = self._seals.for_writing(identity.namespace)
        within = self._backend.within(layout.namespace_folder(identity.namespace))
        conditional = capabilities_of(within).conditional_create
        writer = uuid.uuid4().hex
        lease = Lease(self._backend, writer, identity, self._time_to_live)
        try:
            generations = self._catalogue.of(identity)
            base = load_previous_manifest(self._catalogue, generations.latest(identity))
            packs = base.summary.packs if base is not None else ()
            if packs:
                lease.protect(packs)
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
                abandons=abandoned(self._catalogue, generations, identity, lineage),
                seals=self._seals,
                seal=seal,
            )
        except BaseException:
            lease.release()
            raise

    def find_committed(self, identity: Identity, checkpoint_uid: str) -> SnapshotSummary | None:
        """The snapshot that a checkpoint has committed, if it has."""
        summaries = self._catalogue.newest_readable(self._catalogue.of(identity))
        return next((one for one in summaries if one.checkpoint_uid == checkpoint_uid), None)

    def namespaces(self, name: str | None = None) -> tuple[str, ...]:
        """What the namespaces of a name are called in the store: all where it is None, one where it has a uid."""
        found = self._backend.folders(layout.ROOT)
        return tuple(one for one in found if name is None or name in (one, name_of_namespace(one)))

    def list(self, namespace: str | None = None, id: str | None = None) -> list[SnapshotSummary]:  # noqa: A002
        """The committed snapshots, newest last; of the namespaces of a name, of one id in them, or all."""
        found = [
            summary
            for one in self.namespaces(namespace)
            for summary in self._catalogue.readable(self._catalogue.generations(layout.snapshots_folder(one, id)))
        ]
        return sorted(found, key=lambda one: (one.committed_at, one.ref))

    def committed(self) -> tuple[SnapshotRef, ...]:
        """Every committed snapshot, also those whose manifest cannot be read."""
        folders = map(layout.snapshots_folder, self.namespaces())
        return tuple(sorted(ref for folder in folders for ref in self._catalogue.generations(folder).committed))

    def latest(
        self,
        identity: Identity,
        *,
        excluding: Collection[str] = (),
        avoiding: Collection[int] = (),
        past_newer_formats: bool = True,
    ) -> SnapshotSummary | None:
        """The newest committed snapshot of an identity that can be read; None where there is none at all.

        Costs one listing of the identity's own folder, and one read unless the newest cannot be used. Snapshots of the
        checkpoints in `excluding` (uids), and the generations in `avoiding`, are passed over; so are those that a newer
        version wrote, unless `past_newer_formats` is false.

        Raises:
            StoreUnavailableError: the store is away.
            SealedError: the newest is sealed, and its key is not here.
            UnsealedError: the newest is not sealed, and it must be.
            IntegrityError: none can be read, and the newest is damaged.
            NewerFormatError: a newer version wrote the newest, and it is not passed over, or no other can be read.
        """
        generations = self._catalogue.of(identity)
        unreadable: list[IntegrityError | NewerFormatError] = []
        for ref in sorted(generations.committed, reverse=True):
            if ref.generation in avoiding:
                continue
            try:
                summary = self._catalogue.summary_to_continue(ref, generations.committed[ref])
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

    def require_there(self) -> None:
        """Called by who knows that somebody has saved something here: a folder without a store is none then.

        Raises:
            StoreUnavailableError: the store is away.
        """
        if isinstance(self._backend, PosixBackend):
            self._backend.require_there()

    def manifest_digest(self, ref: SnapshotRef) -> str:
        """By which the manifest of a committed snapshot is known again; raises as `open_snapshot` does."""
        return self._catalogue.manifest_and_digest(ref)[1]

    def open_snapshot(self, ref: SnapshotRef, digest: str = "") -> SnapshotReader:
        """A snapshot, its manifest verified; with a `digest` it is the manifest that was committed, or none.

        Raises:
            NotFoundError: there is no such snapshot.
            IntegrityError: its manifest is damaged, or another one.
            NewerFormatError: it has a newer format.
            SealedError: it is sealed, and its key is not here.
            UnsealedError: it is not sealed, and it must be.
        """
        manifest, found = self._catalogue.manifest_and_digest(ref)
        if digest and found != digest:
            sentence = (
                f"snapshot {ref}: its manifest is another one than was committed: {found:.16}…, not {digest:.16}…"
            )
            raise IntegrityError(sentence, remedy="somebody changed the store; restore an older generation")
        return SnapshotReader(self._backend, manifest, self._seals.of(manifest))

    def verify(self, ref: SnapshotRef, progress: Progress | None = None) -> VerifyReport:
        """Read every chunk of a snapshot; raises as `open_snapshot` does, damaged chunks are in the report."""
        manifest = self._catalogue.manifest(ref)
        return verify_snapshot(self._backend, manifest, progress, seal=self._seals.of(manifest))

    def remove(self, ref: SnapshotRef) -> None:
        """Make a snapshot disappear; its bytes go with later garbage collections.

        Raises:
            NotFoundError: there is no such snapshot.
        """
        self._cache.forget(ref)
        remove_snapshot(self._backend, self._catalogue, ref)

    def apply_retention(
        self, identity: Identity, retention: Retention, now: float | None = None, *, spare: Collection[int] = ()
    ) -> tuple[SnapshotRef, ...]:
        """Remove the generations that the policy gives up, and say which. `now` is in seconds since the epoch.

        Generations in `spare` are in use and stay, whatever the policy says. So does the newest one that is whole, if
        every newer one is damaged.
        """
        summaries = list(self._catalogue.newest_readable(self._catalogue.of(identity)))
        expired_now = expired(summaries, retention, time.time() if now is None else now)
        gone = [ref for ref in expired_now if ref.generation not in spare]
        if gone:
            kept = {one.ref for one in summaries}.difference(gone)
            gone = without_last_whole(self._backend, self._catalogue, kept, gone)
        for ref in gone:
            self.remove(ref)
        return tuple(gone)

    def collect_garbage(
        self, namespace: str | None = None, *, grace_seconds: float = GRACE_SECONDS
    ) -> tuple[GarbageReport, ...]:
        """One run of garbage collection over the namespaces of a name or all; see `garbage.py` for the grace period.

        Raises:
            CrowdedNamespaceError: one of them has more than fits memory; the others were collected.
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

    def collect_in_turn(self, namespace: str, every_seconds: float) -> Turn:
        """One run over a namespace, unless another node runs or ran less than `every_seconds` ago; see `turns.py`."""
        return take_turn(
            self._backend,
            namespace,
            every_seconds,
            lambda: collect_garbage(self._backend, self._catalogue, namespace, time_to_live_seconds=self._time_to_live),
        )

    def prefetch(self, ref: SnapshotRef) -> None:
        """Have on this node what the generation after `ref` needs of it, so that it is not fetched while frozen.

        Raises:
            StoreError: the store cannot be read, or the manifest is damaged.
            NotFoundError: there is no such snapshot.
        """
        if self._cache.is_kept(ref):
            return
        manifest = self._catalogue.manifest(ref)
        if manifest.page_index is not None:
            writer, seal = manifest.summary.writer, self._seals.of(manifest)
            flat = load_page_index(self._backend, self._cache, ref, writer, manifest.page_index, seal)
            if flat is not None:
                flat.close()
                self._cache.keep_only(ref, manifest.summary.writer)

    def tidy_cache(self) -> None:
        """Remove from this node's folder what belongs to snapshots that others have removed from the store.

        What belongs to namespaces with which this node has nothing to do any more goes when its room is needed.

        Raises:
            StoreUnavailableError: the store cannot be asked now; nothing is removed because of that.
        """
        self._cache.tidy()
        for copy in self._cache.copies():
            try:
                is_there = copy.ref in self._catalogue.at(copy.ref).committed
            except CredentialsRefusedError:
                continue
            if not is_there:
                self._cache.forget_if_old(copy)

    def rewrap(self, namespace: str | None = None) -> dict[str, int]:
        """Wrap with the newest key what older ones have wrapped; how many data keys, by namespace.

        Raises:
            SealedError: there is no key, or not one that is needed.
        """
        return {one: self._seals.rewrap(one) for one in self.namespaces(namespace)}

    def erase(self, namespace: str) -> Erasure:
        """Give up what is sealed in a namespace, for good: in one, whose name must be whole.

        Raises:
            NotFoundError: nothing in it is sealed.
        """
        others = tuple(one for one in self.namespaces(namespace) if one != namespace)
        return erase_namespace(self._backend, self._catalogue, namespace, others)

    def probe(self) -> None:
        """Write, read and delete a few bytes: what else it can do does not matter to who has seen that before.

        Raises:
            StoreDeniedError: a person must act: wrong keys, no such bucket, a read-only folder.
            StoreUnavailableError: it cannot be reached, or is full.
        """
        probe(self._backend)

    def check(self) -> StoreReport:
        """Try everything the store needs, and measure it.

        Raises:
            StoreDeniedError: a person must act: wrong keys, no such bucket, a read-only folder.
            StoreUnavailableError: it cannot be reached, or is full.
        """
        return check_store(self._backend)


def _seals_of(config: StorageConfig, backend: Backend) -> Seals:
    if config.key_file is None:
        return Seals(backend)
    keys = KeyFile(config.key_file)
    keys.newest()  # a file that cannot be used is found now, not when something is frozen
    return Seals(backend, keys, accepts_unsealed=config.accept_unsealed, writes_unsealed=config.write_unsealed)


def open_backend(config: StorageConfig, notes: Path | None = None, *, collecting: bool = False) -> Backend:
    """The place that a configuration names; arguments as of `SnapshotStore.open`."""
    if config.path is not None:
        return PosixBackend(config.path, notes)
    assert config.s3 is not None  # noqa: S101 - StorageConfig allows nothing else
    if config.s3.credentials is not None:
        return ScopedBackend(config.s3, CredentialClient(config.s3.credentials, collecting=collecting).fetch)
    return S3Backend(config.s3)
