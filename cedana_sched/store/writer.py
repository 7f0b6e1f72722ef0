"""Writing of a snapshot: streams in, packs out at the same time, and the manifest last.

Failures before the commit leave nothing visible; leaving the context without a commit deletes what was uploaded.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import structlog
from msgspec.structs import replace

from cedana_sched.model.errors import (
    CedanaSchedError,
    CommitConflictError,
    StoreUnavailableError,
    UsageError,
)
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.lineage import Abandoned
from cedana_sched.model.manifest import Manifest, SnapshotMetadata, SnapshotSummary, TransferStats
from cedana_sched.model.policy import Compression
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.chunk_pipeline import ChunkPipeline, PackWriter
from cedana_sched.store.commit import commit_manifest
from cedana_sched.store.compression import Compressor
from cedana_sched.store.garbage import COMMIT_WINDOW_SECONDS, require_packs
from cedana_sched.store.intents import IntentLease
from cedana_sched.store.manifest_format import encode_manifest, manifest_digest_of
from cedana_sched.store.page_classification import Fingerprinter, PageClassifier
from cedana_sched.store.page_fingerprint_cache import FingerprintCache
from cedana_sched.store.page_index import PageIndexWriter
from cedana_sched.store.previous_generation import PreviousGeneration
from cedana_sched.store.sealing.seal import Seal
from cedana_sched.store.sealing.seal_selection import SealSelection
from cedana_sched.store.stream_writer import ChunkFiller, Counters, SegmentList, StreamWriter, is_stream_name

_log = structlog.get_logger(__name__)


class SnapshotWriter:
    """One generation being written; see `SnapshotStore.begin`. A context manager."""

    def __init__(
        self,
        backend: Backend,
        catalogue: Catalogue,
        ref: SnapshotRef,
        *,
        checkpoint_uid: str,
        writer: str,
        lease: IntentLease,
        seed: int,
        previous: PreviousGeneration | None,
        compression: Compression,
        conditional_create: bool,
        cache: FingerprintCache,
        pack_bytes: int,
        run: str,
        abandons: tuple[Abandoned, ...],
        seals: SealSelection,
        seal: Seal,
    ) -> None:
        self.ref = ref
        self._run = run
        self._abandons = abandons
        self._seals = seals
        self._seal = seal
        self.writer = writer
        self.manifest_digest = ""
        """After the commit: BLAKE3 of the manifest's file, in hexadecimal."""
        self.steps = 0
        """Stage of the commit; only increases."""
        self._backend = backend
        self._catalogue = catalogue
        self.checkpoint_uid = checkpoint_uid
        self._lease = lease
        self._previous = previous
        self._conditional_create = conditional_create
        self._cache = cache
        self._packs = PackWriter(backend, ref.identity.namespace, writer, pack_bytes)
        earlier = previous.find_reusable_chunk if previous else lambda _: None
        chunk_seal = seal.chunk_seal(ref.identity, writer)
        self._pipeline = ChunkPipeline(self._packs, Compressor(compression), chunk_seal, earlier)
        self._fingerprints = Fingerprinter(seed)
        index_key, copy = layout.pages_key(ref, writer), cache.new_copy(ref, writer)
        self._index = PageIndexWriter(backend, index_key, copy, seal.index_seal(ref, writer))
        self._counters = Counters()
        self._lock = threading.Lock()
        self._streams: dict[str, StreamWriter] = {}
        self._numbers: dict[StreamWriter, int] = {}
        self._small = ChunkFiller(self._pipeline)
        self._small_lock = threading.Lock()
        self._settled = False
        self._commit_attempted = False

    @property
    def progress(self) -> TransferStats:
        """Progress in bytes; thread-safe."""
        counters, pipeline = self._counters, self._pipeline
        return TransferStats(
            counters.read_bytes,
            counters.zero_bytes,
            counters.reused_bytes + pipeline.repeated_bytes,
            pipeline.new_bytes,
            pipeline.stored_bytes,
        )

    def open_stream(self, name: str) -> StreamWriter:
        """Start a stream; several may be open concurrently, each written by one thread.

        Raises:
            UsageError: the name exists, or is not valid as a file's name or `folder/name`.
        """
        if not is_stream_name(name):
            remedy = "use a plain file name, or folder/name"
            raise UsageError("stream", name, "cannot be the name of a stream", remedy=remedy)
        with self._lock:
            if name in self._streams:
                raise UsageError("stream", name, "exists already", remedy="give every stream its own name")
            stream = StreamWriter(
                name,
                self._pipeline,
                self._counters,
                PageClassifier(self._fingerprints, self._previous.pages if self._previous else None),
                reuse=self._previous,
                index=self._append_index,
                append_small=self._append_small,
            )
            self._streams[name] = stream
            self._numbers[stream] = len(self._numbers)
            return stream

    def commit(self, metadata: SnapshotMetadata) -> Manifest:
        """Make the snapshot visible: first everything durable, then the manifest, which is the commit.

        Raises:
            CommitConflictError: another writer committed this generation.
            StoreError: the store failed. Nothing is visible, unless the store failed exactly during the write of the
                manifest: `SnapshotStore.find_committed` reveals that.
        """
        if metadata.checkpoint_uid != self.checkpoint_uid:
            remedy = "commit with the metadata of the checkpoint that began the snapshot"
            raise UsageError("checkpoint_uid", metadata.checkpoint_uid, "is another checkpoint's", remedy=remedy)
        if unfinished := [stream.name for stream in self._streams.values() if not stream.closed]:
            raise UsageError("streams", unfinished, "are still open", remedy="close every stream before the commit")
        manifest = self._finish_uploads(metadata)
        self.steps += 1
        checked_at = time.monotonic()
        require_packs(self._backend, self.ref.identity.namespace, self.writer, manifest.summary.packs)
        self.steps += 1
        data = self._seals.seal_manifest(self._seal, self.ref, encode_manifest(manifest))
        self._lease.require_valid()
        if time.monotonic() - checked_at > COMMIT_WINDOW_SECONDS:
            raise StoreUnavailableError("the store was too slow for a safe commit", remedy="take the snapshot again")
        self._commit_attempted = True
        try:
            commit_manifest(
                self._backend, self._catalogue, self.ref, self.writer, data, conditional=self._conditional_create
            )
        except CommitConflictError:
            self._commit_attempted = False
            raise
        self.manifest_digest = manifest_digest_of(data)
        self._settled = True
        self._lease.release()
        self._cache.keep_only(self.ref, self.writer)
        return manifest

    def abort(self) -> None:
        """Delete what was uploaded; garbage collection deletes the rest. Never raises a StoreError.

        After a commit with unknown result nothing is deleted: the manifest may yet appear.
        """
        if self._settled:
            return
        self._settled = True
        self._pipeline.abort()
        self._packs.abort()
        self._index.abort()
        store_answers = self._lease.release()
        if store_answers and not self._commit_attempted:
            self._remove_uploads()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _remove_uploads(self) -> None:
        namespace = self.ref.identity.namespace
        keys = [layout.pack_key(namespace, name) for name in self._packs.names]
        try:
            self._backend.delete([*keys, self._index.key])
        except CedanaSchedError as error:
            _log.info("aborted_upload_left_behind", writer=self.writer, error=str(error))

    def _append_index(self, stream: StreamWriter, fingerprints: bytes) -> None:
        self._index.append(self._numbers[stream], fingerprints)

    def _append_small(self, data: memoryview, segments: SegmentList) -> None:
        with self._small_lock:
            self._small.append(data, segments)

    def _finish_uploads(self, metadata: SnapshotMetadata) -> Manifest:
        with self._small_lock:
            self._small.submit_partial_chunk()
        self._pipeline.wait_until_stored()
        self.steps += 1
        self._packs.finish()
        self.steps += 1
        page_index = self._index.finish()
        chunks, packs = self._pipeline.chunk_table()
        summary = SnapshotSummary(
            ref=self.ref,
            writer=self.writer,
            checkpoint_uid=metadata.checkpoint_uid,
            committed_at=time.time(),
            taken_at=metadata.taken_at,
            reason=metadata.reason,
            adapter=metadata.adapter,
            labels=metadata.labels,
            stats=self.progress,
            packs=packs,
            page_index=self._index.key if page_index else None,
            run=self._run,
            abandons=tuple(replace(one, since=one.since or metadata.taken_at) for one in self._abandons),
        )
        return Manifest(
            summary=summary,
            metadata=metadata,
            streams=tuple(stream.to_stream_entry() for stream in self._streams.values()),
            chunks=chunks,
            seed=self._fingerprints.seed,
            page_index=page_index,
            data_key=self._seal.data_key,
        )
