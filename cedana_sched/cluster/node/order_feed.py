"""The agent's side of orders in objects: it performs every unanswered order of its node.

A restarted agent performs an unanswered order again: orders are idempotent. An answer is written with retries until the
API server accepts it, or another order has replaced the answered one. Progress is written at growing intervals, so that
a long order costs hardly more writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from cedana_sched.cluster.node.order_validation import (
    LONGEST_SECONDS,
    UnreadableOrderError,
    objection_to_order,
    read_order,
    refusal_of,
    with_namespace_uid,
)
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.own_kinds.order_exchange import GivenOrder, OrderedObject
from cedana_sched.kube.resources import CHECKPOINTS, RESTORES, Resource
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model import codec
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.checkpoint import TransferStatus
from cedana_sched.model.orders import Dump, Order, Outcome, Progress, StageProgress
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.records import RestoreStep, Transfer
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched.retrying import API_CALLS, Backoff

log = structlog.get_logger(__name__)

RESTORE_SECONDS = 600.0
"""Default deadline of a restore whose policy has none."""
_RESTORE_DEADLINE = CheckpointPolicy.model_fields["restore_deadline_seconds"].alias or ""
_FIRST_PROGRESS_SECONDS = 2.0
_PROGRESS_FACTOR = 2.5
_PROGRESS_SHARE = 4
"""The longest interval is the order's time limit divided by this: at least so many writes precede its deadline."""

Perform = Callable[[Order], AsyncIterator[Outcome]]


@dataclass(frozen=True)
class _Key:
    resource: Resource
    namespace: str
    name: str


class OrderFeed:
    """Performs the orders of one node. Run `run` as a task; its cancellation cancels orders in flight."""

    def __init__(
        self,
        api: Api,
        node: str,
        perform: Perform,
        clock: Callable[[], float] = time.monotonic,
        served: ServedNamespaces = EVERYWHERE,
    ) -> None:
        self._api = api
        self._served = served
        self._node = node
        self._clock = clock
        self._perform = perform
        mine = names.orders_selector(node)
        # all namespaces: what has begun in one that is no longer served must be ended (see `objection_to_order`)
        self.checkpoints = Informer(Watch(api, CHECKPOINTS, OrderedObject, labels=mine))
        self.restores = Informer(Watch(api, RESTORES, OrderedObject, labels=mine))
        self._informers = {CHECKPOINTS: self.checkpoints, RESTORES: self.restores}
        self._latest: dict[_Key, int] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Perform orders until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for resource, informer in self._informers.items():
                informer.subscribe(partial(self._on_object_change, resource))
                group.create_task(informer.run(), name=f"orders in {resource.plural}")

    def busy_with(self) -> list[str]:
        """See `draining.DrainablePart`: checkpoints that have begun and are not terminal."""
        began = (one for one in self.checkpoints if one.has_begun and not one.is_terminal)
        return [f"checkpoint {one.metadata.namespace}/{one.metadata.name}" for one in began]

    def subscribe_to_changes(self, changed: Callable[[], None]) -> None:
        """See `draining.DrainablePart`."""
        self.checkpoints.subscribe(lambda before, now: changed())  # noqa: ARG005

    async def wait_synced(self) -> None:
        """Wait until both informers have synced."""
        for informer in self._informers.values():
            await informer.synced.wait()

    def _on_object_change(self, resource: Resource, before: OrderedObject | None, now: OrderedObject | None) -> None:
        known = now or before
        if known is None or self._group is None:
            return
        key = _Key(resource, known.metadata.namespace, known.metadata.name)
        if now is None or now.status.step == RestoreStep.ENDED:  # the answer is not needed; another pod may be here
            self._latest.pop(key, None)
            return
        given, answered = now.order, now.status.answer
        if given is None or (answered is not None and answered.number >= given.number):
            return
        if self._latest.get(key, 0) >= given.number:
            return  # in flight
        self._latest[key] = given.number
        name = f"{resource.kind} {known.metadata.name} order {given.number}"
        self._group.create_task(self._perform_with_retries(key, now, given), name=name)

    async def _perform_with_retries(self, key: _Key, seen: OrderedObject, given: GivenOrder) -> None:
        try:
            order = read_order(given)
        except UnreadableOrderError as error:
            log.warning("order cannot be read", namespace=key.namespace, object=key.name, error=str(error))
            return
        if (why := objection_to_order(order, seen, key.resource, self._node, self._served)) is not None:
            log.warning(
                "order refused", namespace=key.namespace, object=key.name, order=type(order).__name__, reason=why
            )
            await self._answer(key, given.number, refusal_of(order, seen.spec.uid, why))
            return
        structlog.contextvars.bind_contextvars(object=key.name, order=type(order).__name__)
        order = with_namespace_uid(order, seen.spec.namespace_uid)
        backoff = Backoff(API_CALLS)
        while self._is_current_order(key, given.number):
            pause = backoff.next_pause()
            try:
                if (outcome := await self._carry_out(key, given.number, order)) is not None:
                    await self._answer(key, given.number, outcome)
                    return
            except CedanaSchedError as error:
                log.warning("order not carried out, trying again", error=str(error), pause_seconds=pause)
            except Exception:  # a defect in one order must not end the dumps of other pods
                log.exception("order not carried out, trying again", pause_seconds=pause)
            await asyncio.sleep(pause)

    async def _carry_out(self, key: _Key, number: int, order: Order) -> Outcome | None:
        """Perform an order and return its final outcome; progress writes are not awaited, so that they cost no time."""
        plan = ProgressPlan(self._order_timeout_seconds(key, order), self._clock())
        writing: asyncio.Task[None] | None = None
        try:
            async for outcome in self._perform(order):
                if not isinstance(outcome, Progress | StageProgress):
                    return outcome
                is_free = writing is None or writing.done()
                if is_free and self._is_current_order(key, number) and plan.is_due(self._clock()):
                    publication = self._publish_progress(key, _transfer_to_publish(outcome))
                    writing = asyncio.create_task(publication, name=f"progress of {key.name}")
            return None
        finally:
            if writing is not None:
                writing.cancel()
                await asyncio.wait({writing})

    def _order_timeout_seconds(self, key: _Key, order: Order) -> float:
        """Return how long the order may take, as far as known, in seconds."""
        if isinstance(order, Dump):
            return order.timeout_seconds
        seen = self._informers[key.resource].get(key.name, key.namespace)
        seconds = seen.policy.get(_RESTORE_DEADLINE) if seen is not None else None
        return (
            float(seconds) if isinstance(seconds, int | float) and 0 < seconds <= LONGEST_SECONDS else RESTORE_SECONDS
        )

    async def _publish_progress(self, key: _Key, transfer: Transfer) -> None:
        """Write progress with a precondition on the resource version: a late write changes nothing after the answer."""
        if (seen := self._informers[key.resource].get(key.name, key.namespace)) is None:
            return
        try:
            await self._patch(
                key, {"transfer": TransferStatus.from_transfer(transfer).to_json()}, seen.metadata.resource_version
            )
        except ApiError as error:  # best-effort: progress is informational
            log.info("progress not written", error=error.message)

    async def _answer(self, key: _Key, number: int, outcome: Outcome) -> None:
        backoff = Backoff(API_CALLS)
        while self._is_current_order(key, number):
            try:
                await self._patch(key, {"answer": {"number": number, "outcome": codec.to_builtins(outcome)}})
            except ApiError as error:  # also on NotFound: the watch shows whether the object is gone
                pause = backoff.next_pause()
                log.warning("answer not written, trying again", error=error.message, pause_seconds=pause)
                await asyncio.sleep(pause)
            else:
                return

    async def _patch(self, key: _Key, status: Object, version: str | None = None) -> None:
        patch: Object = {"status": status}
        if version is not None:
            patch["metadata"] = {"resourceVersion": version}
        await self._api.patch(key.resource, key.name, key.namespace, patch, subresource="status")

    def _is_current_order(self, key: _Key, number: int) -> bool:
        return self._latest.get(key) == number


def _transfer_to_publish(progress: Progress | StageProgress) -> Transfer:
    """Return the transfer to publish: bytes that a restore has fetched count as read."""
    return progress.transfer if isinstance(progress, Progress) else Transfer(read_bytes=progress.done_bytes)


class ProgressPlan:
    """Progress writes of one order that may take `limit` seconds from `now` on: 8 for ten minutes, 13 for a day."""

    def __init__(self, limit: float, now: float) -> None:
        self._longest = max(limit / _PROGRESS_SHARE, _FIRST_PROGRESS_SECONDS)
        self._interval = min(_FIRST_PROGRESS_SECONDS, self._longest)
        self._next = now + self._interval

    def is_due(self, now: float) -> bool:
        """Return whether to write at `now`; if so, the next interval is longer than this one."""
        if now < self._next:
            return False
        self._interval = min(self._interval * _PROGRESS_FACTOR, self._longest)
        self._next = now + self._interval
        return True
