"""Volcano: two Queues of one weight; bio has all in one vcjob that can do without each of its pods, and ml reclaims."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Self

from tests.bench.preemption import Preemption, Stage, first_of_each, now, says
from tests.bench.schedulers.scheduler import Scheduler
from tests.cluster.addons import volcano as addon
from tests.cluster.addons.catalog import install
from tests.cluster.api.client import Object
from tests.cluster.fixtures.audit import Write
from tests.cluster.steps import Steps
from tests.e2e.product.installation import Product
from tests.e2e.product.volcano_extender import ACCOUNT, with_extender
from tests.e2e.product.volcano_queues import RECLAIMS, SCHEDULER, groups, vcjob


class Volcano:
    """Implements `Scheduler`: the chart's own plugins, without the extender."""

    name: ClassVar[str] = "Volcano"

    @classmethod
    @asynccontextmanager
    async def ready(cls, product: Product, steps: Steps) -> AsyncIterator[Self]:
        """See `Scheduler`."""
        await install(product.cluster, [addon.Volcano(RECLAIMS)], steps)
        await product.install(volcano={"enabled": True})
        yield cls()

    async def preempt(self, stage: Stage) -> Preemption:
        """See `Scheduler`."""
        pods = 2 * stage.places
        async with groups(stage.namespace):
            await stage.namespace.apply(_vcjob("md", "bio", stage, pods, 1, stage.victim(known_as="md")))
            await stage.begun({"md": pods})
            began = now()
            await stage.namespace.apply(_vcjob("train", "ml", stage, stage.places, stage.places, stage.preemptor()))
            await stage.run("train-")
            return Preemption(began, tuple(first_of_each(self._choices(stage))), ("md-",), ("train-",))

    def _choices(self, stage: Stage) -> Iterator[Write]:
        """What Volcano writes, or would write, of its victims."""
        writes = stage.writes("pods/status", ("md-",))
        return (write for write in writes if write.user == SCHEDULER and says(write, "DisruptionTarget"))


class VolcanoWithExtender(Volcano):
    """Volcano as the notes of our release say, which asks our extender before it evicts."""

    name: ClassVar[str] = "Volcano with the extender"

    @classmethod
    @asynccontextmanager
    async def ready(cls, product: Product, steps: Steps) -> AsyncIterator[Self]:
        """See `Scheduler`."""
        await with_extender(product, steps)
        yield cls()

    def _choices(self, stage: Stage) -> Iterator[Write]:
        """The extender names whom Volcano means before Volcano does."""
        yield from (write for write in stage.writes("pods", ("md-",)) if write.user == ACCOUNT)
        yield from super()._choices(stage)


def _vcjob(name: str, queue: str, stage: Stage, pods: int, at_least: int, spec: Object) -> Object:
    body = vcjob(name, queue, stage.namespace, stage.image, pods=pods, at_least=at_least)
    body["spec"]["tasks"][0]["template"]["spec"] = spec
    return body


if TYPE_CHECKING:

    def _fulfils(volcano: Volcano) -> Scheduler:
        return volcano
