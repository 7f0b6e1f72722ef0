"""Under which name the store keeps what is saved in a namespace: a name alone would hand it on to whoever has it next.

The coordinator speaks of a namespace by its name, as its objects do. The agent asks the API server which namespace that
is now, and reads, writes and removes only what was saved in that very one: what is left of a namespace that was
deleted, and what another cluster has put there under the same name, is another namespace's. An order that was given for
such a one is refused. Names that the admin shares are kept by the name alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from cedana_sched.cluster.node.order_border import identities_of, namespace_uid_of, record_of, refusal_of
from cedana_sched.kube.client import Api
from cedana_sched.kube.objects import PartialObject
from cedana_sched.kube.resources import NAMESPACES
from cedana_sched.model.identity import Identity, is_shared, may_be_one_namespace, namespace_of_uid
from cedana_sched.model.orders import Order, Outcome

log = structlog.get_logger(__name__)


class KeptNamespaces:
    """Performs orders as the store names things, and answers as the coordinator does.

    Args:
        api: knows the namespaces that there are.
        perform: does it.
        shared: names that are no more than names, or `identity.ALL_NAMESPACES`.
    """

    def __init__(self, api: Api, perform: Callable[[Order], AsyncIterator[Outcome]], shared: Collection[str]) -> None:
        self._api = api
        self._perform = perform
        self._shared = frozenset(shared)

    async def perform(self, order: Order) -> AsyncIterator[Outcome]:
        """See `orders.Perform`.

        Raises:
            CedanaSchedError: it could not be done now, and nothing is decided by that.
        """
        name = _namespace_of(order)
        if name is None or is_shared(name, self._shared):
            async for outcome in self._perform(order):
                yield outcome
            return
        found = await self._api.get(NAMESPACES, name, into=PartialObject)
        if not may_be_one_namespace(given := namespace_uid_of(order), found.metadata.uid):
            why = f"it is of namespace {name} with uid {given}, and the one of that name is another one now"
            log.warning("order refused", record=record_of(order), why=why)
            yield refusal_of(order, record_of(order), why)
            return
        kept: Order = _moved(order, namespace_of_uid(name, found.metadata.uid))
        async for outcome in self._perform(kept):
            moved: Outcome = _moved(outcome, name)
            yield moved


def _namespace_of(order: Order) -> str | None:
    """Whose snapshots it is about; None where it is about none. An order is about one namespace: see `order_border`."""
    return next((identity.namespace for identity in identities_of(order)), None)


def _moved(told: Any, namespace: str) -> Any:
    """The same, with every identity in it in this namespace."""
    match told:
        case Identity():
            return replace(told, namespace=namespace)
        case msgspec.Struct():
            fields = {name: getattr(told, name) for name in told.__struct_fields__}
            moved = {name: _moved(value, namespace) for name, value in fields.items()}
            return replace(told, **{name: value for name, value in moved.items() if value is not fields[name]})
        case tuple():
            return tuple(_moved(one, namespace) for one in told)
        case _:
            return told
