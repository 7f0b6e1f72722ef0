"""Agents of all nodes, reached through objects: orders are written to an object, answers read from it.

A restart of either side loses nothing: the order stays in the object until it is answered or replaced. Fields that
another writer removed are restored, at once if the watch shows it, else when the order is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec
import structlog

from cedana_sched.cluster.coordinator.answer_validation import (
    failure_outcome_for,
    first_objection_to,
    is_possible_transfer,
    outcome_if_undeliverable,
    truncate_outcome_texts,
)
from cedana_sched.cluster.coordinator.lost_nodes import LostNodes
from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.coordinator.core import NodeLost, record_uid_of
from cedana_sched.kube.builtin_kinds import Metadata, Node
from cedana_sched.kube.client import Api
from cedana_sched.kube.own_kinds.order_exchange import AnsweredOrder, OrderedObject, OrderedStatus
from cedana_sched.kube.resources import CHECKPOINTS, RESTORES, Resource
from cedana_sched.kube.response_decoding import UnreadableSink
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model import codec
from cedana_sched.model.errors import RetryableError, UsageError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    CheckpointFailed,
    Dump,
    FailWorkload,
    FindSnapshot,
    Freeze,
    Order,
    Outcome,
    Progress,
    RestoreSnapshot,
    RetentionApplied,
    Stage,
    StageProgress,
    StartCold,
)
from cedana_sched.model.texts import truncate_text

log = structlog.get_logger(__name__)

NO_AGENT = "node {node} has no agent of cedana-sched: no pod there can be saved"


_LONGEST_OBJECTION, _LONGEST_LOGGED = 500, 16_384
"""Characters; both quote an answer."""


class OrderSupersededError(RetryableError):
    """The order was superseded by another one for the same object, or the object is gone."""


class AnswerRejectedError(RetryableError):
    """An agent's answer does not match its order: the order is repeated."""


class _PendingAnswer(msgspec.Struct, frozen=True):
    """A pending wait for the answer to the order of that number.

    `changed` gets each change of the object, or the outcome that replaces an answer; None: no more.
    """

    number: int
    order: Order
    changed: Callable[[OrderedObject | Outcome | None], None]


class _ShownProgress:
    """Progress of one order by its object, which shows the previous order's progress until there is more."""

    def __init__(self, order: Order, number: int) -> None:
        self._order = order
        self._number = number
        self._last: Progress | StageProgress | None = None
        self._is_shown = False

    def take_new_progress(self, seen: OrderedObject) -> Progress | StageProgress | None:
        """Return new progress since the last call; None: none, or the object does not show the order yet."""
        if seen.order_number < self._number:
            return None
        before, was_shown = self._last, self._is_shown
        self._last, self._is_shown = _progress_of(self._order, seen.status), True
        return self._last if was_shown and self._last != before else None


class ObjectAgents:
    """Implements `coordinator.ports.Agents`. Run `run` as a task."""

    def __init__(
        self,
        api: Api,
        projection: Projection,
        nodes: Informer[Node],
        on_snapshots_removed: Callable[[tuple[SnapshotRef, ...], str], None] = lambda refs, namespace_uid: None,  # noqa: ARG005
        dependencies: PodNodeDependencies | None = None,
        on_answer_rejected: Callable[[Resource, Metadata, str], None] = lambda kind, one, why: None,  # noqa: ARG005
        manifest_digest_of: Callable[[SnapshotRef], str] = lambda snapshot: "",  # noqa: ARG005
        unreadable: UnreadableSink | None = None,
    ) -> None:
        """Construct; orders are delivered through `projection`.

        Args:
            api: may watch Checkpoints and Restores, and get nodes.
            projection: writes orders.
            nodes: all of the cluster.
            on_snapshots_removed: called with snapshots that retention removed, and the uid of their namespace.
            dependencies: nodes that records depend on.
            on_answer_rejected: called with the object and the reason when its answer is rejected.
            manifest_digest_of: digest of a snapshot's manifest from archived records; empty: unknown.
            unreadable: called with objects that cannot be read.
        """
        self._manifest_digest_of = manifest_digest_of
        self._on_answer_rejected = on_answer_rejected
        self._projection = projection
        self._on_snapshots_removed = on_snapshots_removed
        self.restores = Informer(Watch(api, RESTORES, OrderedObject, labels=names.TRACKED), unreadable)
        checkpoints = Informer(Watch(api, CHECKPOINTS, OrderedObject, labels=names.TRACKED), unreadable)
        self._informers = [checkpoints, self.restores]
        self._nodes = nodes
        self._lost_nodes = LostNodes(api, nodes, dependencies or PodNodeDependencies())
        self._waiting: dict[str, _PendingAnswer] = {}
        self._shown: dict[str, int] = {}
        """Order number in the object, by uid of the record."""
        for resource, informer in zip((CHECKPOINTS, RESTORES), self._informers, strict=True):
            informer.subscribe(partial(self._on_object_changed, resource))
        projection.subscribe_to_orders_ended(self._on_record_archived)
        projection.subscribe_to_undeliverable(self._on_undeliverable)

    async def run(self) -> None:
        """Run the informers forever."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())

    async def perform(self, node: str, order: Order) -> AsyncIterator[Outcome]:
        """See `coordinator.ports.Agents`. A node without an agent gets no order to freeze: no agent would answer."""
        uid = record_uid_of(order)
        if isinstance(order, Freeze | Abort) and not self._has_agent(node) and not self._projection.has_order(uid):
            yield Aborted(uid) if isinstance(order, Abort) else CheckpointFailed(uid, NO_AGENT.format(node=node))
            return
        if isinstance(order, Stage | RestoreSnapshot) and not order.manifest_digest:
            order = msgspec.structs.replace(order, manifest_digest=self._manifest_digest_of(order.snapshot))
        try:
            number = self._projection.enqueue_order(uid, order)
        except KeyError:
            raise OrderSupersededError(f"{uid} is dropped", remedy="nothing is to be done") from None
        changes: asyncio.Queue[OrderedObject | Outcome | None] = asyncio.Queue()
        if overtaken := self._waiting.get(uid):
            overtaken.changed(None)
        waiting = self._waiting[uid] = _PendingAnswer(number, order, changes.put_nowait)
        try:
            progress = _ShownProgress(order, number)
            while (seen := await changes.get()) is not None:
                if not isinstance(seen, OrderedObject):
                    yield seen
                    return
                if (come := progress.take_new_progress(seen)) is not None:
                    yield come
                answer = seen.status.answer
                if answer is not None and answer.number >= number:
                    if answer.number > number:
                        break
                    outcome = self._validate_answer(order, seen, answer)
                    if isinstance(outcome, RetentionApplied):
                        self._on_snapshots_removed(outcome.removed, seen.spec.namespace_uid)
                    yield outcome
                    return
            raise OrderSupersededError(f"{type(order).__name__} of {uid} was overtaken", remedy="nothing is to be done")
        finally:
            if self._waiting.get(uid) is waiting:
                del self._waiting[uid]

    def _has_agent(self, name: str) -> bool:
        """Whether an agent has published the node's facts; True also if the node is unknown."""
        node = self._nodes.get(name)
        return node is None or names.NODE_FACTS in node.metadata.annotations

    def _validate_answer(self, order: Order, seen: OrderedObject, answer: AnsweredOrder) -> Outcome:
        """Validate an answer; return its outcome, or the one that replaces it.

        Raises:
            AnswerRejectedError: it is rejected without replacement.
        """
        try:
            outcome: Outcome = codec.decode(bytes(answer.outcome), Outcome)  # type: ignore[arg-type]  # a union
            why = first_objection_to(outcome, order)
        except (ValueError, RecursionError, UsageError) as error:  # a malformed identity raises UsageError
            why = f"it cannot be read: {error}"
        if why is None:
            return self._shorten_and_log(outcome, seen.metadata)
        why = truncate_text(why, _LONGEST_OBJECTION)
        name, given = seen.metadata.name, type(order).__name__
        log.error("answer not accepted", namespace=seen.metadata.namespace, object=name, order=given, reason=why)
        self._on_answer_rejected(_resource_of_order(order), seen.metadata, why)
        if (failure := failure_outcome_for(order, f"the answer of its node is not accepted: {why}")) is None:
            raise AnswerRejectedError(f"the answer to {given} is not accepted: {why}", remedy="it is ordered again")
        return failure

    def _shorten_and_log(self, outcome: Outcome, of: Metadata) -> Outcome:
        kept = truncate_outcome_texts(outcome)
        if kept != outcome:
            text = repr(outcome)[:_LONGEST_LOGGED]
            log.warning("long answer cut", namespace=of.namespace, object=of.name, answer=text)
        return kept

    def repeat_order(self, node: str, order: Order) -> None:
        """See `coordinator.ports.Agents`: an object that does not show the order is written again."""
        del node
        uid = record_uid_of(order)
        waiting = self._waiting.get(uid)
        if waiting is not None and self._shown.get(uid, 0) < waiting.number:
            self._projection.rewrite_record(uid)

    def _on_record_archived(self, uid: str) -> None:
        """End the wait for an archived record: its object may never have existed, so no watch event ends it."""
        if waiting := self._waiting.get(uid):
            waiting.changed(None)

    def _on_undeliverable(self, uid: str, why: str) -> None:
        if (waiting := self._waiting.get(uid)) and (
            failure := outcome_if_undeliverable(waiting.order, why)
        ) is not None:
            log.warning("order cannot be given", order=type(waiting.order).__name__, record=uid, reason=why)
            waiting.changed(failure)

    def _on_object_changed(self, resource: Resource, before: OrderedObject | None, now: OrderedObject | None) -> None:
        known = now or before
        if known is None:
            return
        uid = known.spec.uid
        if self._projection.is_foreign_object(uid, resource, known.metadata.namespace, known.metadata.name):
            log.warning(
                "object pretends to be another's", namespace=known.metadata.namespace, object=known.metadata.name
            )
            return
        if now is None:
            self._shown.pop(uid, None)
        else:
            self._shown[uid] = now.order_number
        self._projection.on_labels_seen(uid, now.metadata.labels if now is not None else None)
        if waiting := self._waiting.get(uid):
            waiting.changed(now)

    def lost_nodes(self) -> AsyncIterator[NodeLost]:
        """See `coordinator.ports.Agents`."""
        return self._lost_nodes.follow()


def _resource_of_order(order: Order) -> Resource:
    return (
        RESTORES
        if isinstance(order, FindSnapshot | Stage | RestoreSnapshot | StartCold | FailWorkload)
        else CHECKPOINTS
    )


def _progress_of(order: Order, status: OrderedStatus) -> Progress | StageProgress | None:
    """Return the progress of an order; None if agents report none for its kind."""
    if not isinstance(order, Dump | Stage) or (shown := status.transferred) is None:
        return None
    if isinstance(order, Stage):
        return StageProgress(order.restore_uid, shown.read_bytes)
    return Progress(order.checkpoint_uid, shown) if is_possible_transfer(shown) else None
