"""Volcano from its own chart works here as anywhere: a gang starts together, and ends."""

from __future__ import annotations

import pytest

from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace, container, pod

pytestmark = pytest.mark.shape("volcano")

_API = "batch.volcano.sh/v1alpha1"


async def test_gang_runs_to_its_end(namespace: Namespace, toolbox: str, volcano: None) -> None:
    main = container(toolbox, "python3", "-c", "print('done')", resources={"requests": {"cpu": "100m"}})
    task = {"name": "worker", "replicas": 2, "template": {"spec": pod("worker", main)["spec"]}}
    spec = {"schedulerName": "volcano", "minAvailable": 2, "queue": "default", "tasks": [task]}
    await namespace.apply({"apiVersion": _API, "kind": "Job", "metadata": {"name": "gang"}, "spec": spec})

    def is_completed(body: Object) -> bool:
        return bool(body.get("status", {}).get("state", {}).get("phase") == "Completed")

    await namespace.wait(_API, "Job", "gang", is_completed)

    workers = await namespace.pods(phase="Succeeded", count=2)
    assert {worker["spec"]["schedulerName"] for worker in workers} == {"volcano"}
    assert [await namespace.logs(worker["metadata"]["name"]) for worker in workers] == ["done\n", "done\n"]
