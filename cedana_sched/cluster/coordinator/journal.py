"""The coordinator's journal: one small log that is written atomically, and the objects that it is carried over to.

A turn of the core changes several records at once, and the API server can only change one object at a time. So what
changed is first written whole into the log (one ConfigMap, one PUT), which is the moment it is durable, and then, in
the background, into the objects. A coordinator that starts reads the objects, and lays the log over them.

The log is also the fence: every write names the version that it replaces, so that a coordinator which has lost its
lease without noticing can write nothing any more once another one has begun.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping

import msgspec
import structlog
import zstandard

from cedana_sched.cluster.coordinator.objects import RESOURCES, to_record
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.coordinator.tasks import pauses
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AlreadyExistsError, ApiUnavailableError, ConflictError
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import CONFIG_MAPS
from cedana_sched.model import codec
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.objects import names
from cedana_sched.model.records import Checkpoint, CheckpointStep, HoldStep, PreemptionHold, Record

log = structlog.get_logger(__name__)

LOG_NAME = "cedana-sched-journal"
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
_WRITER = f"{names.GROUP}/writer"
_ENTRIES = "entries.json.zst"


Recorded = Callable[[tuple[Record, ...], tuple[Record, ...]], None]
"""Hears what was saved and what forgotten, once it is durable; and all that there is when it was loaded."""


class Entries(msgspec.Struct, frozen=True):
    """What the objects may not show yet."""

    records: tuple[Record, ...] = ()
    forgotten: tuple[Record, ...] = ()


class FencedError(CedanaSchedError):
    """Another coordinator writes the journal."""


class _Log(msgspec.Struct, frozen=True, rename="camel"):
    metadata: Metadata
    binary_data: dict[str, str] = {}


class ObjectJournal:
    """Implements `coordinator.ports.Journal`. `writer` is the name of this process, never used twice."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        writer: str,
        projection: Projection,
        recorded: Recorded = lambda records, forgotten: None,  # noqa: ARG005  # most tests do not want to know
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._writer = writer
        self._projection = projection
        self._recorded = recorded
        self._version = ""
        self._writes = 0

    async def load(self) -> tuple[Record, ...]:
        """Everything that was saved and not forgotten; from here on no other coordinator can save.

        Waits for an API server that does not answer yet, or has just learned of our kinds.

        Raises:
            ApiError: it cannot be read.
        """
        rests = pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                return await self._load()
            except ApiUnavailableError as error:
                log.warning("journal not read, trying again", problem=error.message)
                await asyncio.sleep(next(rests))

    async def _load(self) -> tuple[Record, ...]:
        entries = await self._take_over()
        records: dict[str, Record] = {}
        for resource in RESOURCES:
            query = {"labelSelector": f"!{names.SETTLED}"}
            bodies, _ = await self._api.list_all(resource, None, query, into=dict)
            for body in bodies:
                if (record := self._read(resource.kind, body)) is not None:
                    records[record.uid] = record
                    self._projection.know(record, body)
        late = _without_deleted(entries, records)
        for record in late.forgotten:
            records.pop(record.uid, None)
        records |= {record.uid: record for record in late.records}
        self._projection.write(late.records, late.forgotten)
        self._recorded(tuple(records.values()), ())
        return tuple(records.values())

    def _read(self, kind: str, body: Object) -> Record | None:
        resource = next(resource for resource in RESOURCES if resource.kind == kind)
        try:
            return to_record(resource, body)
        except (ValueError, KeyError) as error:  # written by hand, or before its status was
            log.warning("object is none of ours", kind=kind, name=body["metadata"].get("name"), problem=str(error))
            return None

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...]) -> None:
        """Write and drop these in one atomic step; it is durable when this returns.

        Raises:
            ApiUnavailableError: nothing is known of it; call again.
            FencedError: another coordinator writes.
        """
        changed = {record.uid for record in (*records, *forget)}
        pending = self._projection.pending()
        await self._put(
            Entries(
                (*records, *(record for record in pending.records if record.uid not in changed)),
                (*forget, *(record for record in pending.forgotten if record.uid not in changed)),
            )
        )
        self._projection.write(records, forget)
        self._recorded(records, forget)

    async def _take_over(self) -> Entries:
        while True:
            found = await self._api.find(CONFIG_MAPS, LOG_NAME, self._namespace, into=_Log)
            try:
                if found is None:
                    created = await self._api.create(CONFIG_MAPS, self._body(Entries(), ""), into=_Log)
                    self._version = created.metadata.resource_version
                    return Entries()
                entries = _entries(found)
                body = self._body(entries, found.metadata.resource_version)
                written = await self._api.update(CONFIG_MAPS, body, into=_Log)
            except (ConflictError, AlreadyExistsError):
                continue  # the one before us has just written: what it wrote counts
            self._version = written.metadata.resource_version
            return entries

    async def _put(self, entries: Entries) -> None:
        self._writes += 1
        body = self._body(entries, self._version)
        try:
            written = await self._api.update(CONFIG_MAPS, body, into=_Log)
        except ConflictError as error:
            written = await self._own_write(error)
            if written.metadata.annotations.get(_WRITER) != self._signature():
                self._version = written.metadata.resource_version
                await self._put(entries)
                return
        self._version = written.metadata.resource_version

    async def _own_write(self, conflict: ConflictError) -> _Log:
        """A write of ours whose answer was lost may be what is in the way."""
        current = await self._api.get(CONFIG_MAPS, LOG_NAME, self._namespace, into=_Log)
        writer, _, _ = current.metadata.annotations.get(_WRITER, "").rpartition("/")
        if writer != self._writer:
            raise FencedError(
                f"another coordinator ({writer or 'unknown'}) writes the journal", remedy="this one ends; see its Lease"
            ) from conflict
        return current

    def _signature(self) -> str:
        return f"{self._writer}/{self._writes}"

    def _body(self, entries: Entries, version: str) -> Object:
        data = zstandard.compress(codec.encode(entries), 3)
        metadata: Object = {
            "name": LOG_NAME,
            "namespace": self._namespace,
            "annotations": {_WRITER: self._signature()},
        }
        if version:
            metadata["resourceVersion"] = version
        return {"metadata": metadata, "binaryData": {_ENTRIES: base64.b64encode(data).decode()}}


def _without_deleted(entries: Entries, shown: Mapping[str, Record]) -> Entries:
    """Without Checkpoints whose objects are over, deleted or settled: a log may be older than that.

    One that is ready had an object, or its orders would have gone nowhere. It stays while its eviction is held.
    """
    held = {
        uid
        for one in (*entries.records, *shown.values())
        if isinstance(one, PreemptionHold) and one.step is HoldStep.HOLDING
        for uid in one.checkpoints
    }

    def is_over(record: Record) -> bool:
        is_ready = isinstance(record, Checkpoint) and record.step is CheckpointStep.READY
        return is_ready and record.uid not in shown and record.uid not in held

    return Entries(
        tuple(record for record in entries.records if not is_over(record)),
        tuple(record for record in entries.forgotten if not is_over(record)),
    )


def _entries(found: _Log) -> Entries:
    try:
        data = base64.b64decode(found.binary_data[_ENTRIES], validate=True)
        return codec.decode(zstandard.decompress(data), Entries)
    except (KeyError, binascii.Error, zstandard.ZstdError, msgspec.DecodeError) as error:
        # It held only what the objects may lack: they are what is left, and every step repeats its order.
        log.exception("journal is damaged; what the objects say counts", problem=repr(error))
        return Entries()
