"""A coordinator, once it leads, finds each pod that asks for protection and that no webhook has seen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import EVENTS, PODS
from cedana_sched.model.objects import names
from cedana_sched.testing import FakeApi
from cedana_sched_volcano.objects import GROUP_NAME, POD_GROUPS, QUEUES

SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "md-5f", "uid": "set-uid", "controller": True}
IN_BIO = {"scheduling.volcano.sh/queue-name": "bio"}


def _pod(name: str, said: str | None = None, *, owner: Object | None = SET, **parts: Any) -> Object:
    variables = [] if said is None else [{"name": "CEDANA_CHECKPOINT", "value": said}]
    metadata: Object = {"name": name, "namespace": "lab", "uid": f"uid-{name}"}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    spec = {"schedulerName": parts.pop("scheduler", "default-scheduler"), "nodeName": "node-1"}
    return {"metadata": metadata | parts, "spec": spec | {"containers": [{"name": "main", "env": variables}]}}


CASES = [
    pytest.param(_pod("one", "md"), "MissedByWebhook", ["ReplicaSet", "Pod"], id="a Deployment's"),
    pytest.param(_pod("one", "md", owner=None), "MissedByWebhook", ["Pod"], id="a bare one"),
    pytest.param(
        _pod("one", scheduler="volcano", annotations=IN_BIO),
        "MissedByWebhook",
        ["ReplicaSet", "Pod"],
        id="its queue asks",
    ),
    pytest.param(
        _pod("one", scheduler="volcano", annotations={GROUP_NAME: "md"}),
        "MissedByWebhook",
        ["ReplicaSet", "Pod"],
        id="the queue of its PodGroup asks",
    ),
    pytest.param(_pod("one", "no name"), "NotProtected", ["Pod", "ReplicaSet"], id="nobody knows who it is"),
]


@pytest.mark.parametrize("is_there_before", [True, False])
@pytest.mark.parametrize(("body", "reason", "involved"), CASES)
async def test_it_is_found_and_that_is_said_once(
    body: Object, reason: str, involved: list[str], *, is_there_before: bool
) -> None:
    server = FakeApi()
    server.traffic.late = {POD_GROUPS}
    server.put(QUEUES, {"metadata": {"name": "bio", "uid": "q", "annotations": {names.PROTECT: "true"}}})
    group = {"metadata": {"name": "md", "namespace": "lab", "uid": "g"}, "spec": {"minMember": 1, "queue": "bio"}}
    server.put(POD_GROUPS, group)
    strangers = [_pod("other", owner=owner) for owner in (SET | {"uid": "other"}, None)]
    for number, stranger in enumerate(strangers):
        stranger["metadata"] |= {"name": f"other-{number}", "uid": f"other-{number}"}
        server.put(PODS, stranger)
    told = CoordinatorConfiguration(namespace="cedana-system", adapters=("volcano",))
    if is_there_before:
        server.put(PODS, body)
    async with asyncio.timeout(60), LeadingCoordinator(server, told, "me").run_coordinator():
        if not is_there_before:
            server.put(PODS, body)
        await server.until(lambda: len(server.all_of(EVENTS)) >= len(involved))
        for _ in range(100):
            await asyncio.sleep(0)
    events = server.all_of(EVENTS)
    assert [(one["reason"], one["involvedObject"]["kind"], one["count"]) for one in events] == [
        (reason, kind, 1) for kind in involved
    ]
    patched = {one.name for one in server.traffic.writes if one.verb == "patch"}
    changed = patched & {"one", "other-0", "other-1"}
    assert changed == {"one"}
