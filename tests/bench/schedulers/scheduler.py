"""What a scheduler does to be measured."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol, Self

from tests.bench.preemption import Preemption, Stage
from tests.cluster.cluster import Cluster
from tests.cluster.steps import Steps


class Scheduler(Protocol):
    """One that works on a cluster."""

    name: ClassVar[str]
    """As people call it."""

    @classmethod
    def ready(cls, cluster: Cluster, steps: Steps) -> AbstractAsyncContextManager[Self]:
        """Have it on a cluster.

        Raises:
            ClusterError: it does not come up.
        """
        ...

    def values(self) -> Mapping[str, Any]:
        """What our chart is told of it."""
        ...

    async def preempt(self, stage: Stage) -> Preemption:
        """Let bio fill the cluster, and ml get half of it; returns when all of ml's pods have been Running.

        Raises:
            TimeoutError: that did not come to pass.
        """
        ...
