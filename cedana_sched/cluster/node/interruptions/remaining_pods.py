"""Whether pods are left on a node that end with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.resources import PODS

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0
"""Shortest time between two lists of the node's pods, while an event waits for them."""
OF_THE_NODE: Final = frozenset({"DaemonSet", "Node"})
"""Kinds of owners whose pods stay on a drained node; `Node` owns the mirrors of static pods."""


class RemainingPods:
    """The pods of one node, protected or not.

    Args:
        api: may list pods.
        node: name of the node.
        clock: monotonic seconds.
    """

    def __init__(self, api: Api, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._node = node
        self._clock = clock
        self._next_look = 0.0

    async def has_pods(self) -> bool:
        """Return whether a pod is left that has not ended; also True if that is unknown now."""
        if self._clock() < self._next_look:
            return True
        self._next_look = self._clock() + LOOK_SECONDS
        query = {"fieldSelector": f"spec.nodeName={self._node}"}
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                pods, _ = await self._api.list_all(PODS, query=query, into=Pod)
        except (ApiError, TimeoutError) as error:
            log.warning("pods of the node not listed", error=str(error))
            return True
        return any(not pod.finished and not _is_of_the_node(pod) for pod in pods)


def _is_of_the_node(pod: Pod) -> bool:
    owner = pod.metadata.controller_reference
    return owner is not None and owner.kind in OF_THE_NODE
