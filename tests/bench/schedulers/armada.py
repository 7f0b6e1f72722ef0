"""Armada: two queues of one priority factor; bio has all in jobs of one pod, and ml gets its fair share."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Self

from tests.bench.preemption import Preemption, Stage, now
from tests.bench.schedulers.scheduler import Scheduler
from tests.cluster.api.client import Object
from tests.cluster.armada import armada as server
from tests.cluster.armada.jobs import pod_name
from tests.cluster.steps import Steps
from tests.e2e.product.armada_jobs import SET, Group
from tests.e2e.product.installation import Product


class Armada:
    """Implements `Scheduler`: Armada's defaults, but for the pauses of a laboratory.

    Args:
        server: that is up.
    """

    name: ClassVar[str] = "Armada"

    def __init__(self, server: server.Armada) -> None:
        self._server = server

    @classmethod
    @asynccontextmanager
    async def ready(cls, product: Product, steps: Steps) -> AsyncIterator[Self]:
        """See `Scheduler`."""
        async with server.Armada.beside(product.cluster, steps) as running:
            await product.install(armada={"enabled": True, "url": running.address_in(product.cluster)})
            yield cls(running)

    async def preempt(self, stage: Stage) -> Preemption:
        """See `Scheduler`."""
        async with (
            Group.of(self._server, stage.namespace, "bio") as bio, Group.of(self._server, stage.namespace, "ml") as ml
        ):  # fmt: skip
            names = [f"md-{number}" for number in range(2 * stage.places)]
            specs = {name: _complete(stage.victim(known_as=name)) for name in names}
            items = [bio.jobs.item(spec, labels={"job-name": name}) for name, spec in specs.items()]
            await bio.jobs.submit_items(bio.queue, SET, *items)
            await stage.begun(dict.fromkeys(names, 1))
            began = now()
            owed = await ml.jobs.submit(ml.queue, SET, *[_complete(stage.preemptor())] * stage.places)
            preemptors = tuple(map(pod_name, owed))
            await stage.run(*preemptors)
            victims = await bio.jobs.preempted(bio.queue, SET, stage.places)
            chosen = tuple(victim.created.ToDatetime(tzinfo=dt.UTC) for victim in victims)
            return Preemption(began, chosen, tuple(pod_name(victim.job_id) for victim in victims), preemptors)


def _complete(spec: Object) -> Object:
    """Armada wants to know of memory as well."""
    (main,) = spec["containers"]
    amounts = {**main["resources"]["requests"], "memory": "512Mi"}
    return {**spec, "containers": [{**main, "resources": {"requests": amounts, "limits": amounts}}]}


if TYPE_CHECKING:

    def _fulfils(armada: Armada) -> Scheduler:
        return armada
