"""Carries records over to their objects in the background: the latest state of each, many objects at a time.

The orders for agents travel in the same writes, so that a step costs one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from msgspec import Struct

from cedana_sched.cluster.coordinator.objects import key_of, resource_of, to_object
from cedana_sched.coordinator.tasks import pauses
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, AlreadyExistsError, ApiError, ApiUnavailableError
from cedana_sched.kube.resources import CHECKPOINTS, PREEMPTION_HOLDS, RESTORES, Resource
from cedana_sched.model import codec
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint import CheckpointStatus
from cedana_sched.model.objects.preemption_hold import PreemptionHoldStatus
from cedana_sched.model.objects.restore import RestoreStatus
from cedana_sched.model.orders import Order
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Checkpoint, CheckpointStep, Record

log = structlog.get_logger(__name__)

WRITERS = 48
_AGENTS_PART = {"order", "answer"}
_STATUS_FIELDS = {
    resource.kind: sorted({field.alias or name for name, field in model.model_fields.items()} - agents)
    for resource, model, agents in (
        (CHECKPOINTS, CheckpointStatus, _AGENTS_PART),
        (PREEMPTION_HOLDS, PreemptionHoldStatus, _AGENTS_PART),
        (RESTORES, RestoreStatus, _AGENTS_PART | {"transfer"}),
    )
}
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0


class Pending(Struct, frozen=True):
    """What the objects do not show yet."""

    records: tuple[Record, ...]
    forgotten: tuple[Record, ...]


@dataclass
class _Target:
    """One object: what it shall say, and how far that is written."""

    resource: Resource
    namespace: str
    name: str
    record: Record
    exists: bool = False
    forgotten: bool = False
    is_removed: bool = False
    order: Order | None = None
    order_number: int = 0
    wanted: int = 0
    """Counts what was asked for; `written` is how much of it is there."""
    written: int = 0
    queued: bool = False
    """Waits for a writer, or has one; two at once would overtake each other."""


class Projection:
    """The objects of all records. Run `run` as a task."""

    def __init__(
        self,
        api: Api,
        system_namespace: str,
        is_removed: Callable[[Record], bool] = lambda _: False,
        owners: Callable[[WorkloadRef], list[Object]] = lambda _: [],
    ) -> None:
        """Writes with the rights of `api`.

        Args:
            api: may create, patch and delete the objects.
            system_namespace: where holds go that have no namespace of their own.
            is_removed: says whether a checkpoint's snapshot is not there any more.
            owners: `ownerReferences` of a Checkpoint of this pod.
        """
        self._api = api
        self._is_removed = is_removed
        self._owners = owners
        self._system_namespace = system_namespace
        self._targets: dict[str, _Target] = {}
        self._let_go: set[str] = set()
        self._queue: asyncio.Queue[_Target] = asyncio.Queue()

    def know(self, record: Record, body: Object) -> None:
        """An object that is there already."""
        target = self._target(record)
        target.exists = True
        order = body.get("status", {}).get("order")
        target.order_number = order["number"] if order else 0

    def write(self, records: tuple[Record, ...], forgotten: tuple[Record, ...]) -> None:
        """Have these carried over; returns at once."""
        for record in records:
            if record.uid in self._let_go:
                continue
            target = self._target(record)
            target.record, target.forgotten = record, False
            self._enqueue(target)
        for record in forgotten:
            if record.uid in self._let_go:
                self._let_go.discard(record.uid)
                continue
            target = self._target(record)
            target.record, target.forgotten, target.is_removed = record, True, self._is_removed(record)
            self._enqueue(target)

    def order(self, uid: str, order: Order) -> int:
        """Tell the agent of a record's node; the number under which it answers.

        Raises:
            KeyError: there is no such record any more.
        """
        target = self._targets[uid]
        target.order = order
        target.order_number += 1
        self._enqueue(target)
        return target.order_number

    def let_go(self, uid: str) -> None:
        """Write nothing any more for this record: its object was deleted, and goes for good."""
        if self._targets.pop(uid, None) is not None:
            self._let_go.add(uid)

    def pending(self) -> Pending:
        """What a coordinator that starts now would not see in the objects."""
        late = [target for target in self._targets.values() if target.written < target.wanted]
        return Pending(
            tuple(target.record for target in late if not target.forgotten),
            tuple(target.record for target in late if target.forgotten),
        )

    async def flushed(self) -> None:
        """Wait until the objects show everything that was asked for."""
        await self._queue.join()

    async def run(self) -> None:
        """Write for ever."""
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._work(), name=f"projection {number}")

    def _target(self, record: Record) -> _Target:
        target = self._targets.get(record.uid)
        if target is None:
            namespace, name = key_of(record, self._system_namespace)
            target = self._targets[record.uid] = _Target(resource_of(record), namespace, name, record)
        return target

    def _enqueue(self, target: _Target) -> None:
        target.wanted += 1
        if not target.queued:
            target.queued = True
            self._queue.put_nowait(target)

    async def _work(self) -> None:
        while True:
            target = await self._queue.get()
            while target.written < target.wanted:
                await self._carry_over(target)
            target.queued = False
            self._queue.task_done()

    async def _carry_over(self, target: _Target) -> None:
        """What is wanted by now."""
        for pause in pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS):
            await asyncio.sleep(0)  # the order that belongs to a step is given in the same turn: one request for both
            version = target.wanted
            try:
                await self._write_one(target)
            except ApiUnavailableError as error:
                log.warning("object not written, trying again", name=target.name, problem=error.message)
                await asyncio.sleep(pause)
                continue
            except ApiError as error:  # its namespace is being removed, or somebody took our rights
                log.error(  # noqa: TRY400  # its sentence says all
                    "object cannot be written", kind=target.resource.kind, name=target.name, problem=str(error)
                )
            self._done(target, version)
            return

    def _done(self, target: _Target, version: int) -> None:
        target.written = version
        if target.forgotten and target.written == target.wanted:
            self._targets.pop(target.record.uid, None)
            self._let_go.discard(target.record.uid)

    async def _write_one(self, target: _Target) -> None:
        """A snapshot's Checkpoint stays when it is forgotten, as what people see of it; everything else goes."""
        record = target.record
        if record.uid in self._let_go:
            return
        if not target.forgotten:
            await self._show(target)
        elif isinstance(record, Checkpoint) and record.step is CheckpointStep.READY and not target.is_removed:
            await self._show(target)
            patch: Object = {"metadata": {"labels": {names.SETTLED: "true"}}}
            await self._api.patch(target.resource, target.name, target.namespace, patch)
        else:
            await self._api.delete(target.resource, target.name, target.namespace)

    async def _show(self, target: _Target) -> None:
        body = to_object(target.record, self._system_namespace)
        if not target.exists:
            await self._create(target, body)
        patch: Object = {"status": self._status(target, body)}
        try:
            await self._api.patch(target.resource, target.name, target.namespace, patch, subresource="status")
        except AbsentError:  # somebody has deleted it: the record lives on
            if target.record.uid in self._let_go:
                return
            target.exists = False
            raise ApiUnavailableError(f"{target.name} was deleted, and is made again") from None

    async def _create(self, target: _Target, body: Object) -> None:
        if isinstance(target.record, Checkpoint) and (owners := self._owners(target.record.workload)):
            body["metadata"]["ownerReferences"] = owners
        try:
            await self._api.create(target.resource, body, into=dict)
        except AlreadyExistsError:
            log.info("object was there already", kind=target.resource.kind, name=target.name)
        target.exists = True

    def _status(self, target: _Target, body: Object) -> Object:
        """All of our part; a merge patch forgets nothing by itself, so that what is absent now is said as null."""
        fields = _STATUS_FIELDS[target.resource.kind]
        status = {name: body["status"].get(name) for name in fields}
        if target.order is not None:
            status["order"] = {"number": target.order_number, "order": codec.to_builtins(target.order)}
        return status
