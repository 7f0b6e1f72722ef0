"""The coordinator's journal: a small log that is written atomically, and the objects to which the log is projected.

A turn of the core changes several records at once, and the API server changes one object at a time. So the whole
change is first written to the log (see `redo_log`), which makes it durable, and then, in the background, to the
objects. On start, a coordinator reads the objects and replays the log over them.

The log is also the fence: every write has the resourceVersion that it replaces as precondition, so a coordinator that
lost its Lease unnoticed can no longer write once another one leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.record_objects import RESOURCES, namespace_uid_of, to_record
from cedana_sched.cluster.coordinator.redo_log import Entries, RedoLog
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiError, ApiUnavailableError
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.response_decoding import Unreadable, UnreadableSink
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.records import (
    Checkpoint,
    CheckpointStep,
    HoldStep,
    PreemptionHold,
    Record,
    truncate_record_texts,
    with_namespace_uid,
)
from cedana_sched.retrying import AWAITED, Backoff

log = structlog.get_logger(__name__)

OnRecordsSaved = Callable[[tuple[Record, ...], tuple[Record, ...]], None]
"""Called with saved and archived records once they are durable; first, after a load, with all records."""


class ObjectJournal:
    """Implements `coordinator.ports.Journal`. `writer` is the unique name of this process."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        writer: str,
        projection: Projection,
        on_records_saved: OnRecordsSaved = lambda records, forgotten: None,  # noqa: ARG005  # most tests do not use it
        unreadable: UnreadableSink = lambda resource, one: None,  # noqa: ARG005
    ) -> None:
        self._api = api
        self._log = RedoLog(api, namespace, writer)
        self._projection = projection
        self._on_records_saved = on_records_saved
        self._unreadable = unreadable

    async def load(self) -> tuple[Record, ...]:
        """Return all tracked records; from here on no other coordinator can save.

        Retries while the API server does not answer, has not loaded its RBAC rules, or does not serve our kinds yet.
        """
        backoff = Backoff(AWAITED)
        while True:
            try:
                return await self._load()
            except ApiError as error:
                log.warning("journal not read, trying again", error=str(error))
                await asyncio.sleep(backoff.next_pause())

    async def _load(self) -> tuple[Record, ...]:
        entries = await self._log.take_over()
        records: dict[str, Record] = {}
        for resource in RESOURCES:
            query = {"labelSelector": names.TRACKED}
            bodies, _ = await self._api.list_all(resource, None, query, into=dict)
            for body in bodies:
                if (record := self._read(resource, body)) is not None:
                    records[record.uid] = record
        late = _without_deleted(entries, records)
        for record in late.forgotten:
            records.pop(record.uid, None)
        written = tuple(truncate_record_texts(_with_shown_namespace_uid(record, records)) for record in late.records)
        for record in written:
            records[record.uid] = record
        self._projection.write(written, late.forgotten)
        self._on_records_saved(tuple(records.values()), ())
        return tuple(records.values())

    def _read(self, resource: Resource, body: Object) -> Record | None:
        try:
            record = to_record(resource, body)
            self._projection.register_existing_object(record, body)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, UsageError) as error:
            metadata = msgspec.convert(body["metadata"], Metadata)
            log.warning("object is none of ours", kind=resource.kind, name=metadata.name, error=str(error))
            if body.get("status"):  # else a user created it by hand
                self._unreadable(resource, Unreadable(metadata, str(error)))
            return None
        return record

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...]) -> None:
        """Save and archive records in one atomic step, durable on return.

        Raises:
            RetryableError: the outcome is unknown; call again.
            FencedError: another coordinator writes.
        """
        changed = {record.uid for record in (*records, *forget)}
        pending = self._projection.pending_records()
        still_pending = Entries(
            tuple(record for record in pending.records if record.uid not in changed),
            tuple(record for record in pending.forgotten if record.uid not in changed),
        )
        try:
            await self._log.put(Entries(records, forget), still_pending)
        except ApiError as error:  # any refusal may be temporary, and must not end the coordinator
            raise ApiUnavailableError(error.message, status=error.status, reason=error.reason) from error
        self._projection.write(records, forget)
        self._on_records_saved(records, forget)


def _with_shown_namespace_uid(record: Record, shown: Mapping[str, Record]) -> Record:
    """Return the record with its object's namespace uid, which may have been corrected after the log was written."""
    known = shown.get(record.uid)
    return record if known is None else with_namespace_uid(record, namespace_uid_of(known))


def _without_deleted(entries: Entries, shown: Mapping[str, Record]) -> Entries:
    """Drop terminal Checkpoints whose objects were deleted: the log may be older than the deletion.

    A ready one had an object, or its orders could not have been delivered. It stays while its eviction is held.
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
