"""Volcano: two Queues of one weight; bio has all in one vcjob that can do without each of its pods, and ml reclaims."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tests.bench.preemption import Preemption, Stage, first_of_each, now, says
from tests.bench.schedulers.scheduler import Scheduler
from tests.cluster.addons import volcano as addon
from tests.cluster.addons.catalog import install
from tests.cluster.api.client import Object
from tests.cluster.cluster import Cluster
from tests.cluster.steps import Steps
from tests.e2e.product.volcano_queues import RECLAIMS, SCHEDULER, groups, vcjob


class Volcano:
    """Implements `Scheduler`: the chart's own plugins, without the extender."""

    name: ClassVar[str] = "Volcano"

    @classmethod
    @asynccontextmanager
    async def ready(cls, cluster: Cluster, steps: Steps) -> AsyncIterator[Self]:
        """See `Scheduler`."""
        await install(cluster, [addon.Volcano(RECLAIMS)], steps)
        yield cls()

    def values(self) -> Mapping[str, Any]:
        """See `Scheduler`."""
        return {"volcano": {"enabled": True}}

    async def preempt(self, stage: Stage) -> Preemption:
        """See `Scheduler`."""
        pods = 2 * stage.places
        async with groups(stage.namespace):
            await stage.namespace.apply(_vcjob("md", "bio", stage, pods, 1, stage.victim(known_as="md")))
            await stage.begun({"md": pods})
            began = now()
            await stage.namespace.apply(_vcjob("train", "ml", stage, stage.places, stage.places, stage.preemptor()))
            await stage.run("train-")
            marks = stage.writes("pods/status", ("md-",))
            chosen = first_of_each(w for w in marks if w.user == SCHEDULER and says(w, "DisruptionTarget"))
            return Preemption(began, tuple(chosen), ("md-",), ("train-",))


def _vcjob(name: str, queue: str, stage: Stage, pods: int, at_least: int, spec: Object) -> Object:
    body = vcjob(name, queue, stage.namespace, stage.image, pods=pods, at_least=at_least)
    body["spec"]["tasks"][0]["template"]["spec"] = spec
    return body


if TYPE_CHECKING:

    def _fulfils(volcano: Volcano) -> Scheduler:
        return volcano
