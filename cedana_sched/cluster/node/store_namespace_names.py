"""Maps namespaces to the names under which the store keeps their snapshots, which include the uid.

A bare name would hand the snapshots to the next namespace of that name. The coordinator names a namespace by its name,
as its objects do. The agent reads the uid of that namespace from the API server, and reads, writes and removes only
snapshots of that uid: what remains of a deleted namespace, or what another cluster stored under the same name, belongs
to another namespace. An order for such a namespace is refused. Names that the admin shares are kept by the name alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from cedana_sched.cluster.node.order_validation import identities_of, namespace_uid_of, record_uid_of, refusal_of
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import NAMESPACES
from cedana_sched.model.identity import Identity, is_keyed_by_name, may_be_same_namespace, namespace_store_key
from cedana_sched.model.orders import Order, Outcome

log = structlog.get_logger(__name__)


class StoreNamespaceNames:
    """Performs orders with the store's names, and returns outcomes with the coordinator's.

    Args:
        api: reads namespaces.
        perform: performs the translated order.
        shared: names that are kept without a uid, or `identity.ALL_NAMESPACES`.
    """

    def __init__(self, api: Api, perform: Callable[[Order], AsyncIterator[Outcome]], shared: Collection[str]) -> None:
        self._api = api
        self._perform = perform
        self._shared = frozenset(shared)

    async def perform(self, order: Order) -> AsyncIterator[Outcome]:
        """See `order_feed.Perform`.

        Raises:
            CedanaSchedError: a transient failure; no outcome is decided.
        """
        name = _namespace_of(order)
        if name is None or is_keyed_by_name(name, self._shared):
            async for outcome in self._perform(order):
                yield outcome
            return
        found = await self._api.get(NAMESPACES, name, into=PartialObject)
        if not may_be_same_namespace(given := namespace_uid_of(order), found.metadata.uid):
            why = f"it is of namespace {name} with uid {given}, and the one of that name is another one now"
            log.warning("order refused", record=record_uid_of(order), reason=why)
            yield refusal_of(order, record_uid_of(order), why)
            return
        kept: Order = _move_identities(order, namespace_store_key(name, found.metadata.uid))
        async for outcome in self._perform(kept):
            moved: Outcome = _move_identities(outcome, name)
            yield moved


def _namespace_of(order: Order) -> str | None:
    """Return the namespace of the order's snapshots, one at most (see `order_validation`); None if it has none."""
    return next((identity.namespace for identity in identities_of(order)), None)


def _move_identities(original: Any, namespace: str) -> Any:
    """Return a copy with every identity moved to this namespace."""
    match original:
        case Identity():
            return replace(original, namespace=namespace)
        case msgspec.Struct():
            fields = {name: getattr(original, name) for name in original.__struct_fields__}
            moved = {name: _move_identities(value, namespace) for name, value in fields.items()}
            return replace(original, **{name: value for name, value in moved.items() if value is not fields[name]})
        case tuple():
            return tuple(_move_identities(one, namespace) for one in original)
        case _:
            return original
