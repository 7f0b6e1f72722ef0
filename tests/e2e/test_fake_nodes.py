"""Thousands: fake nodes and pods beside the real ones.

Runs before Kueue is installed, whose webhooks are asked about every pod.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.cluster.addons import kwok
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, pod

_NODES, _SETS, _PODS_OF_A_SET = 200, 4, 500


@pytest_asyncio.fixture(loop_scope="session")
async def fake_nodes(cluster: Cluster, kwok_installed: None) -> AsyncIterator[list[str]]:
    names = await kwok.add_nodes(cluster, _NODES)
    yield names
    await kwok.remove_nodes(cluster, names)


def _replica_set(name: str) -> Object:
    main = container("nothing-is-pulled", "nothing-runs", resources={"requests": {"cpu": "1"}})
    body = pod(name, main, tolerations=[dict(kwok.TOLERATION)], nodeSelector={"type": "kwok"}, restartPolicy="Always")
    template = {"metadata": {"labels": {"set": name}}, "spec": body["spec"]}
    spec = {"replicas": _PODS_OF_A_SET, "selector": {"matchLabels": {"set": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}


@pytest.mark.any_shape
async def test_thousands_of_pods_run_on_hundreds_of_nodes(namespace: Namespace, fake_nodes: list[str]) -> None:
    api, wanted = namespace.api, _SETS * _PODS_OF_A_SET

    await namespace.apply(*(_replica_set(f"many-{number}") for number in range(_SETS)))

    def all_ready(sets: list[Object]) -> bool:
        ready: int = sum(each["status"].get("readyReplicas", 0) for each in sets)
        return ready == wanted

    await wait_for_all(api, "apps/v1", "ReplicaSet", all_ready, namespace=namespace.name, within=240)
    running = await api.objects("v1", "Pod", namespace.name)
    assert len(running) == wanted
    assert {each["spec"]["nodeName"] for each in running} <= set(fake_nodes)

    lost_for_a_moment = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    name = running[0]["metadata"]["name"]
    await api.patch("v1", "Pod", name, lost_for_a_moment, namespace.name, subresource="status")
    await namespace.ready(name)

    await api.delete_all("apps/v1", "ReplicaSet", namespace.name)
    await api.delete_all("v1", "Pod", namespace.name, grace=0)  # no kubelet has to be waited for
