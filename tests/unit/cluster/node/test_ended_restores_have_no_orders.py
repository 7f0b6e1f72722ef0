"""An order of a Restore that is over does not stand: another attempt of the same pod may be under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec

from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.own_kinds.order_exchange import GivenOrder, NamedPod, OrderedObject, OrderedSpec, OrderedStatus
from cedana_sched.kube.own_kinds.parts import IdentitySpec
from cedana_sched.kube.resources import RESTORES
from cedana_sched.model import codec
from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import Order, Outcome, RestoreSnapshot, RestoreSucceeded
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import RestoreStep

POD = "5f2b8c1e-6d7a-4c2f-9a52-2f6c0d8e1b37"
ORDER = RestoreSnapshot("r1", WorkloadRef(POD, "bio", "md-0", "n1"), SnapshotRef(Identity("bio", "md"), 1))
SPEC = OrderedSpec("r1", NamedPod(POD, "n1", "md-0"), IdentitySpec("md"))


def _shown(step: RestoreStep, version: str) -> OrderedObject:
    given = GivenOrder(3, msgspec.Raw(msgspec.json.encode(codec.to_builtins(ORDER))))
    return OrderedObject(
        Metadata(name="r1", namespace="bio", resource_version=version), SPEC, OrderedStatus(step, given)
    )


async def test_an_order_that_is_tried_again_ends_with_its_restore() -> None:
    performed = asyncio.Event()

    is_away = True

    async def perform(order: Order) -> AsyncIterator[Outcome]:
        performed.set()
        if is_away:
            raise StoreUnavailableError("not now")
        yield RestoreSucceeded(order.restore_uid) if isinstance(order, RestoreSnapshot) else RestoreSucceeded("")

    feed = OrderFeed(cast("Any", None), "n1", perform)
    async with asyncio.TaskGroup() as group:
        feed._group = group
        feed.restores.subscribe(lambda before, now: feed._on_object_change(RESTORES, before, now))
        feed.restores._put(_shown(RestoreStep.RESTORING, "1"))
        await performed.wait()
        feed.restores._put(_shown(RestoreStep.ENDED, "2"))
        performed.clear()
        feed.restores._put(_shown(RestoreStep.ENDED, "3"))
    assert not performed.is_set()
