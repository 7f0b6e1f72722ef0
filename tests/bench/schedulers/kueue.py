"""Kueue: two ClusterQueues of one cohort; bio borrows what is ml's, in Jobs of one pod, and ml reclaims it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Self

from tests.bench.preemption import Preemption, Stage, first_of_each, now, says
from tests.bench.schedulers.scheduler import Scheduler
from tests.cluster.addons.catalog import install
from tests.cluster.api.client import Object
from tests.cluster.steps import Steps
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import groups, indexed_job

_CHECK = "checkpoint-restore"


class Kueue:
    """Implements `Scheduler`; whether the queues name our AdmissionCheck is all that protection is."""

    name: ClassVar[str] = "Kueue"

    @classmethod
    @asynccontextmanager
    async def ready(cls, product: Product, steps: Steps) -> AsyncIterator[Self]:
        """See `Scheduler`."""
        await install(product.cluster, ["kueue"], steps)
        await product.install(kueue={"enabled": True})
        yield cls()

    async def preempt(self, stage: Stage) -> Preemption:
        """See `Scheduler`."""
        quotas = dict.fromkeys(("bio", "ml"), f"{stage.places * stage.millicpus}m")
        check = _CHECK if stage.protected else None
        async with groups(stage.namespace, quotas, check=check):
            jobs = [f"md-{number}" for number in range(2 * stage.places)]
            await stage.namespace.apply(*(_job(name, "bio", stage, 1, stage.victim()) for name in jobs))
            await stage.begun(dict.fromkeys(jobs, 1))
            began = now()
            await stage.namespace.apply(_job("train", "ml", stage, stage.places, stage.preemptor()))
            await stage.run("train-")
            marks = stage.writes("workloads/status", tuple(f"job-{name}-" for name in jobs))
            chosen = first_of_each(write for write in marks if says(write, "Evicted"))
            return Preemption(began, tuple(chosen), ("md-",), ("train-",))


def _job(name: str, queue: str, stage: Stage, pods: int, spec: Object) -> Object:
    body = indexed_job(name, queue, stage.image, pods=pods)
    body["spec"]["template"]["spec"] = spec
    return body


if TYPE_CHECKING:

    def _fulfils(kueue: Kueue) -> Scheduler:
        return kueue
