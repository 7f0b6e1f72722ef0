"""One Armada has two clusters: it places jobs on both, and pods of both reach it at the same address."""

from __future__ import annotations

import pytest
from armada_client.armada.event_pb2 import JobRunningEvent
from armada_client.typings import EventType

from tests.cluster.armada.armada import Armada
from tests.cluster.armada.jobs import Jobs, pod_name, pod_spec
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace

_ASK = """
import socket
with socket.create_connection(("{host}", {port}), 10):
    print("reached")
"""


@pytest.mark.any_shape
async def test_jobs_run_on_both_clusters_of_one_armada(
    armada: Armada, cluster: Cluster, other_cluster: Cluster, namespace: Namespace, toolbox: str
) -> None:
    other = other_cluster
    async with (
        armada.having(other),
        other.api() as api,
        Namespace.created(other, api, namespace.name) as elsewhere,
        Jobs.opened(armada.address, namespace.name) as jobs,
    ):
        queue = await jobs.queue(namespace.name)
        places = {cluster.place.name: (cluster, namespace), other.place.name: (other, elsewhere)}
        for name, (place, within) in places.items():
            host, _, port = armada.address_in(place).partition(":")
            ask = ("python3", "-c", _ASK.format(host=host, port=port))
            node = {"kubernetes.io/hostname": next(iter(place.nodes))}
            spec = pod_spec(toolbox, *ask, nodeSelector=node, tolerations=[{"operator": "Exists"}])

            [job] = await jobs.submit(queue, name, spec)

            ran = await jobs.wait_for(queue, name, {job: EventType.running})
            message = ran[job].message
            assert isinstance(message, JobRunningEvent)
            assert message.cluster_id == name
            await jobs.wait_for(queue, name, {job: EventType.succeeded})
            assert await within.logs(pod_name(job)) == "reached\n"
