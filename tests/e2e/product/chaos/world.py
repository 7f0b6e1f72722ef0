"""What faults and load act upon, and how they go on while the API server is away."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp
import tenacity
from kubernetes_asyncio.client import ApiException

from tests.cluster.api.client import Api
from tests.cluster.api.waiting import WaitedInVainError
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.nodes.node import Node
from tests.cluster.patience import patient
from tests.cluster.steps import Steps
from tests.e2e.product.chaos.outside import Outside
from tests.e2e.product.chaos.plan import NODES

T = TypeVar("T")

_BROKEN = (aiohttp.ClientError, TimeoutError, ConnectionError, ClusterError, ApiException)
"""What a request meets while the control plane, a node or a webhook is away."""
_INSIST_SECONDS = 420.0
"""A manager of others that has ended often, because the API server was away, pauses up to 300 s (CrashLoopBackOff)."""
FOR_EVER = math.inf
"""For what may rightly take longer than anything is away: it fails for the first time when that time is over."""


@dataclass(frozen=True)
class Befallen:
    """A fault that was, with the times at which it began and was healed (epoch seconds)."""

    kind: str
    target: str
    began: float
    healed: float


@dataclass
class World:
    """The cluster of a run, and what has befallen it so far."""

    cluster: Cluster
    api: Api
    outside: Outside
    image: str
    steps: Steps
    history: list[Befallen] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    """Jobs, as `namespace/name`, that were deleted on purpose while they were held."""

    def node(self, target: str) -> Node:
        """The node that a plan calls `first` or `last`."""
        return list(self.cluster.nodes.values())[0 if target == NODES[0] else -1]

    def node_of(self, address: str) -> str:
        """On which node a pod of this address is; empty for an address that is no pod's."""
        for node in self.cluster.nodes.values():
            if node.pod_subnet.network_address.packed[:3] == bytes(map(int, address.split(".")[:3])):
                return node.name
        return ""


async def insist(work: Callable[[], Awaitable[T]], *, seconds: float = _INSIST_SECONDS) -> T:
    """Do something that can be done twice until it succeeds: what it needs may be away for a while.

    Raises:
        Exception: of the last attempt, after `seconds`.
    """
    async for attempt in tenacity.AsyncRetrying(
        wait=tenacity.wait_random_exponential(multiplier=0.3, max=3),
        stop=tenacity.stop_after_delay(patient(seconds)),
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, _BROKEN)),
        reraise=True,
    ):
        with attempt:
            return await work()
    raise AssertionError("the last attempt returns or raises")


async def insist_within(work: Callable[[], Awaitable[T]], *, seconds: float) -> T | None:
    """The same, but what is not there after `seconds` is None."""
    try:
        async with asyncio.timeout(seconds):
            return await insist(work, seconds=seconds)
    except (TimeoutError, WaitedInVainError):
        return None


def now() -> float:
    """Epoch seconds, by the clock of the machine that all parts share."""
    return time.time()
