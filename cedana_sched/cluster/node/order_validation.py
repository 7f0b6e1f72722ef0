"""Validation of orders by the agent, which is root on its node: which orders an object may give, and for which pod.

An order belongs to an object of one namespace, and concerns only the pod and the identity that the object's spec names.
So write access to objects of one namespace gives no power over another one, and every string that becomes part of a
path has been validated before. `OrderFeed` calls `objection_to_order`; the agent's process also passes orders through
`PodOrderGuard`, right before it acts on a pod.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator

import structlog
from msgspec.structs import replace

from cedana_sched.kube.own_kinds.order_exchange import GivenOrder, OrderedObject
from cedana_sched.kube.own_kinds.parts import IdentitySpec
from cedana_sched.kube.resources import CHECKPOINTS, Resource
from cedana_sched.model import codec
from cedana_sched.model.errors import CedanaSchedError, UsageError
from cedana_sched.model.identity import LARGEST_GENERATION, Identity, SnapshotRef
from cedana_sched.model.orders import (
    Abort,
    ApplyRetention,
    CheckpointFailed,
    DiscardCancelled,
    Dump,
    FailWorkload,
    FindSnapshot,
    Freeze,
    Kill,
    Order,
    Outcome,
    RemovalFailed,
    RemoveSnapshot,
    RestoreFailed,
    RestoreSnapshot,
    SnapshotFound,
    Stage,
    StageFailed,
    StartCold,
    Thaw,
)
from cedana_sched.model.path_segment_validation import is_object_name, is_pod_uid, is_record_uid
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces

log = structlog.get_logger(__name__)

LONGEST_SECONDS = float(LONGEST_RECORD_SECONDS)


OfRestore = FindSnapshot | Stage | RestoreSnapshot | StartCold | FailWorkload
OfStore = FindSnapshot | ApplyRetention | RemoveSnapshot | DiscardCancelled
"""Orders that concern the store alone."""
Ends = Kill | Thaw | Abort | StartCold | FailWorkload
"""Orders that are performed although nothing of the pod remains."""
Begins = Freeze | Dump | FindSnapshot | Stage
"""Orders that are performed in served namespaces only; the others end what has begun, or clean up. RestoreSnapshot
is not among them: its snapshot is staged already, and the pod's processes may have been restored and run."""

_SHOWN = 80


class UnreadableOrderError(CedanaSchedError):
    """The bytes in an order's place are not an order, or are an order of a newer coordinator."""


def read_order(given: GivenOrder) -> Order:
    """Decode the order of an object.

    Raises:
        UnreadableOrderError: the object has no readable order.
    """
    try:
        return codec.decode(bytes(given.order), Order)  # type: ignore[arg-type]  # a union of structs
    except (ValueError, RecursionError, UsageError) as error:  # an invalid identity raises UsageError
        raise UnreadableOrderError(str(error)) from error


def objection_to_order(
    order: Order, one: OrderedObject, kind: Resource, node: str, served: ServedNamespaces = EVERYWHERE
) -> str | None:
    """Return why an object may not give this order to the agent of a node; None if it may. Makes no calls."""
    return next(_objections(order, one, kind, node, served), None)


def _objections(order: Order, one: OrderedObject, kind: Resource, node: str, served: ServedNamespaces) -> Iterator[str]:
    what, namespace = type(order).__name__, one.metadata.namespace
    if isinstance(order, Begins) and (why := served.objection(namespace)) is not None:
        yield why
    if isinstance(order, OfRestore) == (kind == CHECKPOINTS):
        yield f"a {kind.kind} orders no {what}"
    uid = record_uid_of(order)
    if not is_record_uid(uid):
        yield f"{_quote_shortened(uid)} is no uid of a record"
    if uid != one.spec.uid:
        yield f"the order is for {_quote_shortened(uid)}, and the {kind.kind} is {_quote_shortened(one.spec.uid)}"
    if (workload := workload_of(order)) is not None:
        yield from _objections_to_pod(workload, one, node)
    for identity in identities_of(order):
        if identity.namespace != namespace:
            yield f"{identity} is of another namespace than the {kind.kind}, which is in {_quote_shortened(namespace)}"
        if not any(_is_identity_in_spec(identity, named) for named in _allowed_identities(order, one)):
            yield f"{identity} is not what the {kind.kind} is about"
    continues = order.lineage.continues if isinstance(order, Dump) and order.lineage is not None else None
    if continues is not None and continues.identity.namespace != namespace:
        yield f"{continues} is of another namespace than the {kind.kind}"
    if not all(1 <= generation <= LARGEST_GENERATION for generation in _generations_of(order)):
        yield "it names a generation that cannot be"
    seconds = order.timeout_seconds if isinstance(order, Freeze | Dump) else None
    if seconds is not None and not 0 <= seconds <= LONGEST_SECONDS:
        yield f"{seconds:g} s are no time in which a dump could be made"


def _objections_to_pod(workload: WorkloadRef, one: OrderedObject, node: str) -> Iterator[str]:
    if workload.namespace != one.metadata.namespace:
        yield f"pod {_quote_shortened(workload.name)} is of another namespace than what orders this"
    if not is_pod_uid(workload.uid):
        yield f"{_quote_shortened(workload.uid)} is no uid of a pod"
    if not is_object_name(workload.name):
        yield f"{_quote_shortened(workload.name)} is no name of a pod"
    if (workload.uid, workload.name) != (one.spec.pod_ref.uid, one.spec.pod_ref.name):
        other = _quote_shortened(one.spec.pod_ref.name)
        yield f"it is about pod {_quote_shortened(workload.name)}, and the object about {other}"
    if workload.node != node:
        yield f"the pod is on node {_quote_shortened(workload.node)}, and this is {node}"


def workload_of(order: Order) -> WorkloadRef | None:
    """Return the pod on which the order acts; None if it concerns the store alone."""
    return None if isinstance(order, OfStore) else order.workload


def identities_of(order: Order) -> tuple[Identity, ...]:
    """Return the identities of everything that the order reads or removes in the store."""
    refs = (ref.identity for ref in _refs_of(order))
    return (
        (order.identity, *refs)
        if isinstance(order, Dump | Abort | FindSnapshot | ApplyRetention | DiscardCancelled)
        else tuple(refs)
    )


def with_namespace_uid(order: Order, uid: str) -> Order:
    """Return the order with this namespace uid: the object's value overrides the order's own."""
    if isinstance(order, OfStore):
        return replace(order, namespace_uid=uid)
    return replace(order, workload=replace(order.workload, namespace_uid=uid))


def namespace_uid_of(order: Order) -> str:
    """Return the uid of the namespace for which the order was given; empty: see `identity.may_be_same_namespace`."""
    return order.namespace_uid if isinstance(order, OfStore) else order.workload.namespace_uid


def _refs_of(order: Order) -> tuple[SnapshotRef, ...]:
    if isinstance(order, Stage | RestoreSnapshot | RemoveSnapshot):
        return (order.snapshot,)
    return (
        (order.requested_snapshot,) if isinstance(order, FindSnapshot) and order.requested_snapshot is not None else ()
    )


def _generations_of(order: Order) -> tuple[int, ...]:
    named = tuple(ref.generation for ref in _refs_of(order))
    if isinstance(order, FindSnapshot):
        return (*named, *order.avoiding)
    return order.spare if isinstance(order, ApplyRetention) else named


def _allowed_identities(order: Order, one: OrderedObject) -> tuple[IdentitySpec, ...]:
    """Return the identities that the object covers; for a Restore also that of a snapshot that the user requested."""
    named = (one.spec.identity, one.spec.requested_snapshot if isinstance(order, OfRestore) else None)
    return tuple(spec for spec in named if spec is not None)


def _is_identity_in_spec(identity: Identity, spec: IdentitySpec) -> bool:
    return (identity.id, identity.index, identity.container) == (spec.id, spec.index, spec.container)


def record_uid_of(order: Order) -> str:
    """Return the uid of the record to whose object the order belongs."""
    return order.restore_uid if isinstance(order, OfRestore) else order.checkpoint_uid


def refusal_of(order: Order, uid: str, why: str) -> Outcome:
    """Return the outcome of an order that is not performed, for the record with this uid."""
    text = f"the node refuses the order: {why}"
    match order:
        case FindSnapshot():
            return SnapshotFound(uid, problem=text)
        case Stage():
            return StageFailed(uid, text)
        case RestoreSnapshot() | StartCold() | FailWorkload():
            return RestoreFailed(uid, text)
        case RemoveSnapshot() | DiscardCancelled():
            return RemovalFailed(uid, text)
        case _:
            return CheckpointFailed(uid, text)


class PodOrderGuard:
    """Performs orders for pods of this node, and refuses the rest.

    Args:
        perform: performs an accepted order.
        is_here: whether the API server has this very pod on this node; None if it has no pod of this name and uid (any
            more). Raises ApiError if that cannot be determined.
        owners: namespaces and names of the pods with a uid that have remains on this node, according to its container
            runtime. No other component lists a pod that was deleted by force.
    """

    def __init__(
        self,
        perform: Callable[[Order], AsyncIterator[Outcome]],
        is_here: Callable[[WorkloadRef], Awaitable[bool | None]],
        owners: Callable[[str], Awaitable[Collection[tuple[str, str]]]],
    ) -> None:
        self._perform = perform
        self._is_here = is_here
        self._owners = owners

    async def perform(self, order: Order) -> AsyncIterator[Outcome]:
        """See `order_feed.Perform`.

        Raises:
            CedanaSchedError: a transient failure; no outcome is decided.
        """
        workload = workload_of(order)
        is_here = True if workload is None else await self._is_here(workload)
        if workload is not None and not is_here:
            allowed = await self._order_for_gone_pod(order, workload) if is_here is None else None
            if allowed is None:
                pod = f"{workload.namespace}/{workload.name}"
                why = f"{pod} with uid {workload.uid} is no pod of this node (any more)"
                uid = record_uid_of(order)
                log.warning("order refused", record=uid, reason=why)
                yield refusal_of(order, uid, why)
                return
            order = allowed
        async for outcome in self._perform(order):
            yield outcome

    async def _order_for_gone_pod(self, order: Order, workload: WorkloadRef) -> Order | None:
        """Return the order to perform for a pod that the API server does not have on this node; None: refuse."""
        owners = set(await self._owners(workload.uid))
        if owners == {(workload.namespace, workload.name)}:
            return order
        if owners or not isinstance(order, Ends):
            return None
        return replace(order, insist=True) if isinstance(order, Kill) else order  # the pod will not be deleted


def _quote_shortened(text: str) -> str:
    return repr(text[:_SHOWN])
