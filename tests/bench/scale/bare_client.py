"""How long a client that does nothing else takes to create as many objects as there are orders to give.

It is what an order can cost at least on this machine, in the same state of the cluster: the objects are Checkpoints in
all but their group, so that nobody watches them and nobody acts on them.
"""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import yaml

from cedana_sched.cluster.coordinator.projection import WRITERS
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.resources import CHECKPOINTS, Resource
from cedana_sched.model import codec
from cedana_sched.model.objects import names
from cedana_sched.model.orders import Freeze
from cedana_sched.model.preemption import WorkloadRef
from tests.bench.scale.checkpoints import checkpoint
from tests.cluster.api.client import Api as AdminApi
from tests.cluster.api.waiting import has_condition, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.together import together
from tests.e2e.product.rendering import CHART

_GROUP = "bench.cedana.ai"
TWIN = Resource(f"{_GROUP}/{names.VERSION}", CHECKPOINTS.kind, CHECKPOINTS.plural)


async def define_twin(api: AdminApi) -> None:
    """Serve the twin of the kind: its schema, its subresource, another group."""
    file = CHART / f"files/crds/{CHECKPOINTS.plural}.{names.GROUP}.yaml"
    body: Object = yaml.safe_load(file.read_text())
    name = body["metadata"]["name"] = f"{TWIN.plural}.{_GROUP}"
    body["spec"]["group"] = _GROUP
    body["spec"]["names"].pop("categories", None)
    body["spec"]["names"].pop("shortNames", None)
    await api.apply(body)
    await wait_for(api, body["apiVersion"], body["kind"], name, has_condition("Established"))


async def creation_seconds(cluster: Cluster, namespace: str, count: int) -> list[float]:
    """For each object, from the moment in which all are wanted to the answer; as many writers as the coordinator's."""
    async with Api.open(str(cluster.kubeconfig)) as api:
        await api.find(TWIN, "none", namespace, into=dict)  # a connection is open then, as the coordinator's are
        rest = iter(range(count))
        began = time.monotonic()
        found: list[float] = []

        async def create() -> None:
            for number in rest:
                await api.create(TWIN, _checkpoint(namespace, number), into=dict)
                found.append(time.monotonic() - began)

        async with asyncio.timeout(600):
            await together(*(create() for _ in range(WRITERS)))
        return found


def _checkpoint(namespace: str, number: int) -> Object:
    """As the coordinator writes one, with its first order."""
    pod = WorkloadRef(str(UUID(int=number)), namespace, f"md-{number}", f"node-{number}")
    body = checkpoint(f"bare-{number}", "kueue", pod)
    body["apiVersion"] = TWIN.group_version
    body["spec"]["firstOrder"] = {"number": 1, "order": codec.to_builtins(Freeze(body["spec"]["uid"], pod))}
    return body
