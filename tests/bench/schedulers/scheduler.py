"""What a scheduler does to be measured."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Protocol, Self

from tests.bench.preemption import Preemption, Stage
from tests.cluster.steps import Steps
from tests.e2e.product.installation import Product


class Scheduler(Protocol):
    """One that works on a cluster."""

    name: ClassVar[str]
    """As people call it."""

    @classmethod
    def ready(cls, product: Product, steps: Steps) -> AbstractAsyncContextManager[Self]:
        """Have it on the product's cluster, and the product know of it.

        Raises:
            ClusterError: one of them does not come up.
        """
        ...

    async def preempt(self, stage: Stage) -> Preemption:
        """Let bio fill the cluster, and ml get half of it; returns when all of ml's pods have been Running.

        Raises:
            TimeoutError: that did not come to pass.
        """
        ...
