"""Redo log of the coordinator's journal: records that objects may not show yet; one PUT makes any size durable.

The head is the ConfigMap `cedana-sched-journal`; it has inline entries and references segments, which are in slots: the
ConfigMaps `-0` to `-31`, because a ConfigMap holds at most 1 MiB. The parts of a segment are written first, to slots
that no head references, then the head that references each by its digest. The PUT of the head has the replaced
resourceVersion as precondition, so it is both the commit point and the fence. A segment is never rewritten: the head
marks which of its entries are live, and drops the segment once none is.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Collection, Iterable

import msgspec
import structlog
import zstandard

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import (
    AbsentError,
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    UnreadableError,
)
from cedana_sched.kube.resources import CONFIG_MAPS
from cedana_sched.model import codec
from cedana_sched.model.errors import CedanaSchedError, IntegrityError
from cedana_sched.model.objects import names
from cedana_sched.model.records import Record
from cedana_sched.store.decoding import UNREADABLE, decompress_bounded

log = structlog.get_logger(__name__)

LOG_NAME = "cedana-sched-journal"
SLOTS = 32
"""ConfigMaps `LOG_NAME-0` and so on; the chart's Role lists each."""
PART_BYTES = 768 << 10
INLINE_BYTES = 128 << 10
"""Larger batches become a segment, which later turns do not rewrite."""
INLINE_RECORDS = 300
"""With at most so many entries, all segments are dropped and all entries rewritten inline."""
SEGMENTS = 16
"""At so many, all are merged into one."""
ENCODED_AT_ONCE = 64
"""More records are encoded in a thread."""
MOST_BYTES = 512 << 20
"""Decompressed size limit of one ConfigMap or segment."""
_DAMAGE = (*UNREADABLE, IntegrityError, ValueError, LookupError)
"""Exceptions from reading content that another writer damaged."""
_ENTRIES = "entries.json.zst"
_SEGMENTS = "segments.json"
_PART = "part"


class Entries(msgspec.Struct, frozen=True):
    """Records that objects may not show yet."""

    records: tuple[Record, ...] = ()
    forgotten: tuple[Record, ...] = ()


class FencedError(CedanaSchedError):
    """Another coordinator writes the journal."""


class _ConfigMap(msgspec.Struct, frozen=True, rename="camel"):
    metadata: Metadata
    binary_data: dict[str, str] = {}


class _Segment(msgspec.Struct, frozen=True):
    """Reference in the head: slot and digest of each part, and a live bit for each entry, records first."""

    parts: tuple[tuple[int, str], ...]
    live: str


_Key = tuple[int, bool]


class _Entry(msgspec.Struct, frozen=True):
    record: Record
    is_forgotten: bool

    @property
    def key(self) -> _Key:
        """Key of this exact state of a record: a later state is another object."""
        return id(self.record), self.is_forgotten


class _StoredSegment(msgspec.Struct, frozen=True):
    """A segment and its entries, in order."""

    parts: tuple[tuple[int, str], ...]
    entries: tuple[_Entry, ...]

    def to_reference(self, live: Collection[_Key]) -> _Segment:
        bits = sum(1 << number for number, entry in enumerate(self.entries) if entry.key in live)
        return _Segment(self.parts, f"{bits:x}")


class _Head(msgspec.Struct, frozen=True):
    """One state of the log: the current one, or the one after an unconfirmed write."""

    segments: tuple[_StoredSegment, ...] = ()
    data: dict[str, str] = {}


class RedoLog:
    """The log, with one writing coordinator at a time; `writer` is the unique name of this process."""

    def __init__(self, api: Api, namespace: str, writer: str) -> None:
        self._api = api
        self._namespace = namespace
        self._writer = writer
        self._writes = 0
        self._version = ""
        self._head = _Head()
        self._is_lost = False
        """Whether the log was deleted, perhaps with its segments: then everything is rewritten."""
        self._doubtful: dict[str, _Head] = {}
        """Head writes whose responses were lost, by signature."""
        self._slots: dict[int, str] = {}
        """Known resourceVersions of the slots."""
        self._encoded: dict[int, tuple[Record, bytes]] = {}
        """Encoded records of the head, by object id, to encode each once."""

    async def take_over(self) -> Entries:
        """Return everything that the predecessor wrote, and fence the predecessor.

        Raises:
            ApiError: the API server refused, or did not answer.
        """
        while True:
            found = await self._api.find(CONFIG_MAPS, LOG_NAME, self._namespace, into=_ConfigMap)
            self._writes += 1
            try:
                if found is None:
                    made = await self._api.create(CONFIG_MAPS, self._config_map_body({}, ""), into=_ConfigMap)
                else:
                    body = self._config_map_body(found.binary_data, found.metadata.resource_version)
                    made = await self._api.update(CONFIG_MAPS, body, into=_ConfigMap)
            except (ConflictError, AlreadyExistsError):
                continue  # the predecessor has just written: its content counts
            except AbsentError:
                if found is None:  # the ConfigMap cannot be created: its namespace is gone
                    raise
                continue
            self._version = made.metadata.resource_version
            self._doubtful.clear()
            return await self._read(found.binary_data if found is not None else {})

    async def put(self, changed: Entries, pending: Entries) -> None:
        """Make `changed` durable, and all of `pending` that is not yet.

        Raises:
            FencedError: another coordinator writes.
            ApiError: the outcome is unknown; call again.
        """
        while True:
            if self._doubtful:
                await self._resolve_uncertain_writes()
            head = await self._prepare_head(changed, pending)
            if await self._replace(head):
                return

    # -- the head

    async def _replace(self, head: _Head) -> bool:
        """PUT the head; return False if the log was changed or deleted, and the head must be prepared again."""
        self._writes += 1
        body, signature = self._config_map_body(head.data, self._version), self._writer_signature()
        try:
            if self._version:
                made = await self._api.update(CONFIG_MAPS, body, into=_ConfigMap)
            else:
                made = await self._api.create(CONFIG_MAPS, body, into=_ConfigMap)
        except AbsentError:
            if not self._version:
                raise
            log.warning("journal was deleted, and is made again", name=LOG_NAME)
            self._version, self._is_lost = "", True
            return False
        except (ConflictError, AlreadyExistsError):
            self._doubtful[signature] = head
            return False
        except ApiError:
            self._doubtful[signature] = head
            raise
        self._version, self._head, self._is_lost = made.metadata.resource_version, head, False
        return True

    async def _resolve_uncertain_writes(self) -> None:
        """Resolve writes whose responses were lost.

        Read the head and write it once more: after that, none of our writes still in flight can succeed.

        Raises:
            FencedError: another coordinator writes.
            ApiError: the outcome is unknown; call again.
        """
        try:
            found = await self._read_own_head()
        except AbsentError:
            self._version, self._is_lost = "", True
            self._doubtful.clear()
            return
        signature = found.metadata.annotations.get(names.WRITER, "")
        arrived = self._doubtful.get(signature, self._head)
        self._version = found.metadata.resource_version
        self._writes += 1
        body = self._config_map_body(found.binary_data, self._version)
        try:
            made = await self._api.update(CONFIG_MAPS, body, into=_ConfigMap)
        except ApiError as error:
            self._doubtful[self._writer_signature()] = arrived
            if isinstance(error, ConflictError | AbsentError):
                raise ApiUnavailableError(
                    f"{LOG_NAME} is changed at this moment", remedy="it is tried again"
                ) from error
            raise
        self._version, self._head, self._is_lost = made.metadata.resource_version, arrived, False
        self._doubtful.clear()

    async def _read_own_head(self) -> _ConfigMap:
        """Read the head; raise FencedError if another coordinator wrote it."""
        found = await self._api.get(CONFIG_MAPS, LOG_NAME, self._namespace, into=_ConfigMap)
        writer, _, _ = found.metadata.annotations.get(names.WRITER, "").rpartition("/")
        if writer != self._writer:
            raise FencedError(
                f"another coordinator ({writer or 'unknown'}) writes the journal", remedy="this one ends; see its Lease"
            )
        return found

    async def _prepare_head(self, changed: Entries, pending: Entries) -> _Head:
        """Return a head with all entries, after writing the parts of its new segment."""
        entries = sorted([*_entries_of(changed), *_entries_of(pending)], key=lambda entry: entry.is_forgotten)
        kept = self._head.segments
        taken = sum(len(one.parts) for one in kept)
        if self._is_lost or len(entries) <= INLINE_RECORDS or len(kept) >= SEGMENTS or taken > SLOTS // 2:
            kept = ()
        wanted = {entry.key for entry in entries}
        kept = tuple(one for one in kept if any(entry.key in wanted for entry in one.entries))
        in_segments = {entry.key for one in kept for entry in one.entries}
        named = [one.to_reference(wanted) for one in kept]
        inline = tuple(entry for entry in entries if entry.key not in in_segments)
        blob = await self._encode_entries(inline)
        if len(blob) > INLINE_BYTES:
            made = await self._write_segment(blob, inline)
            kept, named = (*kept, made), [*named, made.to_reference(wanted)]
            blob = await self._encode_entries(())
        data = {_ENTRIES: base64.b64encode(blob).decode()}
        if named:
            data[_SEGMENTS] = base64.b64encode(msgspec.json.encode(named)).decode()
        return _Head(kept, data)

    async def _encode_entries(self, entries: tuple[_Entry, ...]) -> bytes:
        known = {id(entry.record): found for entry in entries if (found := self._encoded.get(id(entry.record)))}
        many = len(entries) - len(known) > ENCODED_AT_ONCE or len(entries) > INLINE_RECORDS
        blob, self._encoded = (
            await asyncio.to_thread(_compress_entries, entries, known) if many else _compress_entries(entries, known)
        )
        return blob

    def _config_map_body(self, data: dict[str, str], version: str) -> Object:
        metadata: Object = {
            "name": LOG_NAME,
            "namespace": self._namespace,
            "annotations": {names.WRITER: self._writer_signature()},
        }
        if version:
            metadata["resourceVersion"] = version
        return {"metadata": metadata, "binaryData": data}

    def _writer_signature(self) -> str:
        return f"{self._writer}/{self._writes}"

    # -- segments

    async def _write_segment(self, blob: bytes, entries: tuple[_Entry, ...]) -> _StoredSegment:
        slices = [blob[at : at + PART_BYTES] for at in range(0, len(blob), PART_BYTES)]
        taken = {slot for one in self._head.segments for slot, _ in one.parts}
        free = [slot for slot in range(SLOTS) if slot not in taken]
        if len(slices) > len(free):
            raise ApiUnavailableError(
                f"the journal is full: {len(entries)} records and more are not carried over to objects yet",
                remedy="it is tried again; see why the API server refuses objects",
            )
        for slot, part in zip(free, slices, strict=False):
            await self._write_part(slot, part)
        return _StoredSegment(tuple((slot, _digest(part)) for slot, part in zip(free, slices, strict=False)), entries)

    async def _write_part(self, slot: int, part: bytes) -> None:
        """Write to an unreferenced slot. After a conflict, first confirm that this process still owns the log."""
        data = base64.b64encode(part).decode()
        while True:
            metadata: Object = {"name": _slot_object_name(slot), "namespace": self._namespace}
            body = {"metadata": metadata, "binaryData": {_PART: data}}
            try:
                if version := self._slots.get(slot):
                    metadata["resourceVersion"] = version
                    made = await self._api.update(CONFIG_MAPS, body, into=_ConfigMap)
                else:
                    made = await self._api.create(CONFIG_MAPS, body, into=_ConfigMap)
            except (ConflictError, AlreadyExistsError):
                found = await self._api.find(CONFIG_MAPS, _slot_object_name(slot), self._namespace, into=_ConfigMap)
                await self._read_own_head()  # in this order: a later fence implies a later slot write
                self._slots.pop(slot, None)
                if found is not None:
                    self._slots[slot] = found.metadata.resource_version
            except AbsentError:
                if self._slots.pop(slot, None) is None:  # the ConfigMap cannot be created: its namespace is gone
                    raise
            else:
                self._slots[slot] = made.metadata.resource_version
                return

    async def _read(self, data: dict[str, str]) -> Entries:
        """Decode a head and its segments; damaged ones are skipped, and the objects are authoritative then."""
        entries: dict[str, _Entry] = {}
        kept: list[_StoredSegment] = []
        try:
            segments = _decode_segments(data, _SEGMENTS, tuple[_Segment, ...]) if _SEGMENTS in data else ()
        except _DAMAGE as error:
            log.exception("journal is damaged; what the objects say counts", error=repr(error))
            segments = ()
        for segment in segments:
            if (found := await self._read_segment(segment)) is None:
                continue
            one, live = found
            kept.append(one)
            entries |= {entry.record.uid: entry for entry in live}
        if _ENTRIES in data:
            entries |= {entry.record.uid: entry for entry in _decode_inline_entries(data)}
        self._head = _Head(tuple(kept), data)
        return Entries(
            tuple(entry.record for entry in entries.values() if not entry.is_forgotten),
            tuple(entry.record for entry in entries.values() if entry.is_forgotten),
        )

    async def _read_segment(self, segment: _Segment) -> tuple[_StoredSegment, list[_Entry]] | None:
        """Return the segment and its live entries; None if damaged."""
        blob = b""
        try:
            for slot, digest in segment.parts:
                if slot not in range(SLOTS):
                    raise ValueError(f"there is no slot {slot}")
                found = await self._api.get(CONFIG_MAPS, _slot_object_name(slot), self._namespace, into=_ConfigMap)
                self._slots[slot] = found.metadata.resource_version
                part = base64.b64decode(found.binary_data[_PART], validate=True)
                if _digest(part) != digest:
                    raise ValueError(f"part {slot} is not what the head names")
                blob += part
            entries = tuple(_entries_of(codec.decode(decompress_bounded(blob, MOST_BYTES), Entries)))
            bits = int(segment.live, 16)
            if not 0 <= bits < 1 << len(entries):
                raise ValueError(f"{segment.live:.40} says nothing of {len(entries)} entries")
        except (AbsentError, UnreadableError, *_DAMAGE) as error:
            log.exception("journal is damaged; what the objects say counts", error=repr(error))
            return None
        live = [entry for number, entry in enumerate(entries) if bits >> number & 1]
        return _StoredSegment(segment.parts, entries), live


def _entries_of(entries: Entries) -> Iterable[_Entry]:
    """Yield entries in encoding order."""
    yield from (_Entry(record, is_forgotten=False) for record in entries.records)
    yield from (_Entry(record, is_forgotten=True) for record in entries.forgotten)


def _compress_entries(
    entries: tuple[_Entry, ...], known: dict[int, tuple[Record, bytes]]
) -> tuple[bytes, dict[int, tuple[Record, bytes]]]:
    """Return compressed `Entries`, and each record as JSON: one at a time, so that a thread yields to others."""
    texts = {id(one.record): known.get(id(one.record)) or (one.record, codec.encode(one.record)) for one in entries}
    records = b",".join(texts[id(one.record)][1] for one in entries if not one.is_forgotten)
    forgotten = b",".join(texts[id(one.record)][1] for one in entries if one.is_forgotten)
    return zstandard.compress(b'{"records":[' + records + b'],"forgotten":[' + forgotten + b"]}", 3), texts


def _decode_inline_entries(data: dict[str, str]) -> Iterable[_Entry]:
    try:
        text = decompress_bounded(base64.b64decode(data[_ENTRIES], validate=True), MOST_BYTES)
        return tuple(_entries_of(codec.decode(text, Entries)))
    except _DAMAGE as error:
        # it held only what objects may lack: the objects remain, and every step repeats its order
        log.exception("journal is damaged; what the objects say counts", error=repr(error))
        return ()


def _decode_segments(data: dict[str, str], key: str, expected: type[tuple[_Segment, ...]]) -> tuple[_Segment, ...]:
    return msgspec.json.decode(base64.b64decode(data[key], validate=True), type=expected)


def _slot_object_name(slot: int) -> str:
    return f"{LOG_NAME}-{slot}"


def _digest(part: bytes) -> str:
    return hashlib.sha256(part).hexdigest()
