"""Projects records to their objects in the background: the latest state of each, many objects in parallel.

Orders for agents are part of the same writes, so that a step costs one request, and a Checkpoint's first order is part
of its creation; writes that a component waits for precede those that only display state. Level-triggered: whatever the
object lacks of its record is written again, whatever the API server answered before. Except into another namespace: a
deleted namespace may have been recreated under its name while its records are still tracked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog
from msgspec import Struct

from cedana_sched.cluster.coordinator.namespace_uid_check import NamespaceUidCheck, OfAnotherNamespaceError
from cedana_sched.cluster.coordinator.priority_write_queue import PriorityWriteQueue
from cedana_sched.cluster.coordinator.record_objects import (
    labels_of,
    namespace_uid_of,
    object_key_of,
    resource_of,
    to_object,
)
from cedana_sched.cluster.coordinator.status_patches import encode_numbered_order, status_patch
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, AlreadyExistsError, ApiError, ApiUnavailableError, NamespaceGoneError
from cedana_sched.kube.resources import Resource
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint import CheckpointSpec
from cedana_sched.model.orders import Order
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import (
    TERMINAL_CHECKPOINT_STEPS,
    TERMINAL_RESTORE_STEPS,
    Checkpoint,
    CheckpointStep,
    PreemptionHold,
    Record,
)
from cedana_sched.model.texts import truncate_text
from cedana_sched.retrying import API_CALLS, Backoff

log = structlog.get_logger(__name__)

WRITERS = 48
_OVER = TERMINAL_CHECKPOINT_STEPS | TERMINAL_RESTORE_STEPS
_FIRST_ORDER = CheckpointSpec.wire_name("first_order")

OnWriteRejected = Callable[[Record, ApiError, bool], None]
"""Called for each refused write; the flag: whether it is the first since a successful one."""


class Pending(Struct, frozen=True):
    """Records that the objects do not show yet."""

    records: tuple[Record, ...]
    forgotten: tuple[Record, ...]


@dataclass(eq=False)
class _ObjectState:
    """Desired and written state of one object."""

    resource: Resource
    namespace: str
    name: str
    record: Record
    exists: bool = False
    existed: bool = False
    """Also if uncertain: an agent may have read an order there."""
    forgotten: bool = False
    is_removed: bool = False
    is_labelled: bool = True
    """Whether the object has our labels; another writer may have changed them."""
    order: Order | None = None
    order_number: int = 0
    order_shown: int = 0
    """Number of the last written order."""
    wanted: int = 0
    """Version of the desired state; `written` is the version of the object."""
    written: int = 0
    waits: bool = False
    """Queued for a writer."""
    taken: bool = False
    """Has a writer, or is in backoff; two concurrent writers would reorder writes."""
    backoff: Backoff = field(default_factory=lambda: Backoff(API_CALLS))

    @property
    def is_urgent(self) -> bool:
        """Whether a component waits for the write: an agent for its order, or a reader of the outcome."""
        if isinstance(self.record, PreemptionHold):  # the webhooks decide by it
            return True
        if self.forgotten:
            return False
        shows = self.exists and self.is_labelled and self.order_shown == self.order_number
        return not shows or self.record.step in _OVER


class Projection:
    """The objects of all records. Run `run` as a task."""

    def __init__(
        self,
        api: Api,
        system_namespace: str,
        is_removed: Callable[[Record], bool] = lambda _: False,
        owners: Callable[[WorkloadRef], list[Object]] = lambda _: [],
        on_write_rejected: OnWriteRejected = lambda *_: None,
        on_namespace_corrected: Callable[[str, str], None] = lambda uid, namespace_uid: None,  # noqa: ARG005
        marks: Callable[[WorkloadRef], dict[str, str]] = lambda _: {},
    ) -> None:
        """Construct; writes use the permissions of `api`.

        Args:
            api: may create, patch and delete the objects, and get namespaces.
            system_namespace: for holds without a namespace of their own.
            is_removed: whether a checkpoint's snapshot has been removed.
            owners: `ownerReferences` of a Checkpoint of this pod.
            on_write_rejected: called for each refused write.
            marks: annotations of a Checkpoint of this pod.
            on_namespace_corrected: called with the uid of a record and its actual namespace uid, if it has another one.
        """
        self._api = api
        self._namespaces = NamespaceUidCheck(api)
        self._on_write_rejected = on_write_rejected
        self._on_namespace_corrected = on_namespace_corrected
        self._is_removed = is_removed
        self._owners = owners
        self._marks = marks
        self._system_namespace = system_namespace
        self._targets: dict[str, _ObjectState] = {}
        self._let_go: set[str] = set()
        self._sinks: list[Callable[[str], None]] = []
        self._undeliverable_sinks: list[Callable[[str, str], None]] = []
        self._late: dict[str, _ObjectState] = {}
        """Targets whose objects are out of date."""
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._lanes: PriorityWriteQueue[_ObjectState] = PriorityWriteQueue()

    def register_existing_object(self, record: Record, body: Object) -> None:
        """Register an existing object."""
        target = self._get_or_create_target(record)
        target.exists = target.existed = True
        order = body.get("status", {}).get("order") or body["spec"].get(_FIRST_ORDER)
        target.order_number = target.order_shown = order["number"] if order else 0

    def subscribe_to_orders_ended(self, sink: Callable[[str], None]) -> None:
        """Call `sink` with the uid of each record that gets no more orders. The sink must not block."""
        self._sinks.append(sink)

    def subscribe_to_undeliverable(self, sink: Callable[[str, str], None]) -> None:
        """Call `sink` with the uid of a record whose orders no agent can read, and the reason. The sink must not block.

        Its object cannot be created, and never existed, or the record's namespace is gone.
        """
        self._undeliverable_sinks.append(sink)

    def write(self, records: tuple[Record, ...], forgotten: tuple[Record, ...]) -> None:
        """Enqueue these records; returns at once."""
        for record in records:
            if record.uid in self._let_go:
                continue
            target = self._get_or_create_target(record)
            target.record, target.forgotten = record, False
            self._enqueue(target)
        for record in forgotten:
            self._notify_orders_ended(record.uid)
            if record.uid in self._let_go:
                self._let_go.discard(record.uid)
                continue
            target = self._get_or_create_target(record)
            target.record, target.forgotten, target.is_removed = record, True, self._is_removed(record)
            self._enqueue(target)

    def enqueue_order(self, uid: str, order: Order) -> int:
        """Enqueue an order for the agent of a record's node; return the number that its answer will have.

        Raises:
            KeyError: the record is no longer tracked.
        """
        target = self._targets[uid]
        target.order = order
        target.order_number += 1
        self._enqueue(target)
        return target.order_number

    def has_order(self, uid: str) -> bool:
        """Whether the record has had an order, perhaps from an earlier coordinator."""
        return (target := self._targets.get(uid)) is not None and target.order_number > 0

    def rewrite_record(self, uid: str) -> None:
        """Write a record and its order again: the object may have lost them."""
        if (target := self._targets.get(uid)) is not None and not target.forgotten:
            target.order_shown = 0
            self._enqueue(target)

    def on_labels_seen(self, uid: str, labels: Mapping[str, str] | None) -> None:
        """Process a tracked object's labels from a watch; None: deleted. Changes of other writers are reverted."""
        target = self._targets.get(uid)
        if target is None or target.forgotten or not target.exists:
            return
        if labels is None:
            target.exists = False
            log.info("object was deleted, creating it again", kind=target.resource.kind, name=target.name)
        elif labels_of(target.record).items() <= labels.items():
            return
        else:
            log.warning("object was changed by another writer", kind=target.resource.kind, name=target.name)
        target.is_labelled = False
        self._enqueue(target)

    def is_foreign_object(self, uid: str, resource: Resource, namespace: str, name: str) -> bool:
        """Whether an object that claims the uid of a record is not that record's object."""
        target = self._targets.get(uid)
        return target is not None and (target.resource, target.namespace, target.name) != (resource, namespace, name)

    def stop_writing(self, uid: str) -> None:
        """Stop writing this record: its object was deleted for good."""
        if (target := self._targets.pop(uid, None)) is not None:
            self._let_go.add(uid)
            self._mark_up_to_date(target)
            self._notify_orders_ended(uid)

    def pending_records(self) -> Pending:
        """Return the records whose objects are out of date."""
        late = tuple(self._late.values())
        return Pending(
            tuple(target.record for target in late if not target.forgotten),
            tuple(target.record for target in late if target.forgotten),
        )

    async def wait_flushed(self) -> None:
        """Wait until all objects are up to date."""
        await self._flushed.wait()

    async def run(self) -> None:
        """Write, forever."""
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._run_writer(), name=f"projection {number}")

    def _get_or_create_target(self, record: Record) -> _ObjectState:
        target = self._targets.get(record.uid)
        if target is None:
            namespace, name = object_key_of(record, self._system_namespace)
            target = self._targets[record.uid] = _ObjectState(resource_of(record), namespace, name, record)
        return target

    def _notify_orders_ended(self, uid: str) -> None:
        for sink in self._sinks:
            sink(uid)

    def _enqueue(self, target: _ObjectState) -> None:
        target.wanted += 1
        self._late[target.record.uid] = target
        self._flushed.clear()
        if target.waits or not target.taken:
            target.waits = True
            self._lanes.put(target, urgent=target.is_urgent)

    async def _run_writer(self) -> None:
        while True:
            target = await self._lanes.get()
            target.waits, target.taken = False, True
            await asyncio.sleep(0)  # an order of the same step is given in the same turn: one request
            if not self._is_out_of_date(target) or await self._write_or_retry(target):
                target.taken = False
                if self._is_out_of_date(target):  # changed meanwhile
                    target.waits = True
                    self._lanes.put(target, urgent=target.is_urgent)

    async def _write_or_retry(self, target: _ObjectState) -> bool:
        """Write the object; on failure schedule a retry with backoff, and return False."""
        version, order_number = target.wanted, target.order_number
        try:
            await self._write_one(target)
        except NamespaceGoneError as error:  # the namespace is gone with its content; no object can show the record
            log.info("object not written", kind=target.resource.kind, name=target.name, error=error.message)
            if not target.existed or isinstance(error, OfAnotherNamespaceError):
                for sink in self._undeliverable_sinks:
                    sink(target.record.uid, error.message)
        except ApiError as error:
            self._on_write_rejected(target.record, error, target.backoff.failures == 0)
            self._schedule_retry(target, str(error))
            return False
        except Exception as error:  # a defect of one record must not stop others or the writers
            log.exception("object cannot be made of its record", kind=target.resource.kind, name=target.name)
            if not target.forgotten:  # its next step may be writable
                self._schedule_retry(target, repr(error))
                return False
        target.backoff.reset()
        target.order_shown = order_number
        target.written = version
        if target.written == target.wanted:
            self._mark_up_to_date(target)
        return True

    def _is_out_of_date(self, target: _ObjectState) -> bool:
        return self._late.get(target.record.uid) is target

    def _schedule_retry(self, target: _ObjectState, problem: str) -> None:
        """Schedule a retry with backoff; the writer handles other objects meanwhile."""
        pause = target.backoff.next_pause()
        log.warning(
            "object not written, trying again",
            kind=target.resource.kind,
            name=target.name,
            error=truncate_text(problem),
            refusals=target.backoff.failures,
            pause_seconds=pause,
        )
        asyncio.get_running_loop().call_later(pause, self._try_again, target)

    def _try_again(self, target: _ObjectState) -> None:
        target.waits = True
        self._lanes.put(target, urgent=target.is_urgent)

    def _mark_up_to_date(self, target: _ObjectState) -> None:
        """Mark the object as up to date."""
        uid = target.record.uid
        if self._late.get(uid) is target:
            del self._late[uid]
        if target.forgotten and self._targets.get(uid) is target:
            del self._targets[uid]
            self._let_go.discard(uid)
        if not self._late:
            self._flushed.set()

    async def _write_one(self, target: _ObjectState) -> None:
        """Write or delete the object: a Checkpoint with a snapshot stays when archived; others are deleted."""
        record = target.record
        if record.uid in self._let_go:
            return
        if not target.forgotten:
            await self._write_object(target)
        elif isinstance(record, Checkpoint) and record.step is CheckpointStep.READY and not target.is_removed:
            with contextlib.suppress(AbsentError):  # the record is terminal, and its object or namespace deleted
                await self._write_object(target)
                patch: Object = {"metadata": {"labels": {names.ARCHIVED: "true"}}}
                await self._api.patch(target.resource, target.name, target.namespace, patch)
        else:
            await self._api.delete(target.resource, target.name, target.namespace)

    async def _write_object(self, target: _ObjectState) -> None:
        if not target.exists and await self._create(target) and not target.forgotten:
            target.wanted += 1  # the creation contained the order; the status can wait
            return
        patch: Object = {"status": status_patch(target.record, target.order, target.order_number)}
        try:
            if not target.is_labelled:
                await self._restore_labels(target)
            await self._api.patch(target.resource, target.name, target.namespace, patch, subresource="status")
        except AbsentError:  # deleted by another writer: recreated while the record is tracked
            target.exists = False
            if target.record.uid not in self._let_go:
                raise

    async def _restore_labels(self, target: _ObjectState) -> None:
        """Restore the labels by which agents select their orders."""
        labels = {**labels_of(target.record), names.ARCHIVED: None, names.REMOVE_SNAPSHOT: None}
        await self._api.patch(target.resource, target.name, target.namespace, {"metadata": {"labels": labels}})
        target.is_labelled = True

    def _workloads_of(self, record: Record) -> list[WorkloadRef]:
        """Return the record's pods in its own namespace."""
        if not isinstance(record, PreemptionHold):
            return [record.workload]
        targets = (self._targets.get(uid) for uid in record.checkpoints)
        victims = (target.record for target in targets if target is not None)
        workloads = (one.workload for one in victims if isinstance(one, Checkpoint))
        return [workload for workload in workloads if workload.namespace == record.namespace]

    async def _create(self, target: _ObjectState) -> bool:
        """Create the object; return whether it delivered the order to the agent."""
        record = await self._namespaces.with_current_uid(
            target.record, target.namespace, self._workloads_of(target.record)
        )
        if (namespace_uid := namespace_uid_of(record)) != namespace_uid_of(target.record):
            self._on_namespace_corrected(record.uid, namespace_uid)
        body = to_object(record, self._system_namespace)
        gives_order = False
        if isinstance(target.record, Checkpoint):
            if owners := self._owners(target.record.workload):
                body["metadata"]["ownerReferences"] = owners
            if marks := self._marks(target.record.workload):
                body["metadata"]["annotations"] = marks
            if target.order is not None:
                body["spec"][_FIRST_ORDER] = encode_numbered_order(target.order_number, target.order)
                gives_order = True
        try:
            await self._api.create(target.resource, body, into=dict)
        except AlreadyExistsError:
            log.info("object was there already", kind=target.resource.kind, name=target.name)
            target.is_labelled = gives_order = False
        except ApiUnavailableError:
            target.existed = True  # perhaps
            raise
        target.exists = target.existed = True
        return gives_order
