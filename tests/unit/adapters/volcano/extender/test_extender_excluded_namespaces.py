"""The extender keeps nobody who is in an excluded namespace, and counts what he takes of his node."""

from __future__ import annotations

import asyncio

import pytest

from cedana_sched.component.configuration import NEVER_TOUCHED
from cedana_sched.kube.resources import CHECKPOINTS, NODES, PODS, PREEMPTION_HOLDS
from cedana_sched.model.objects import names
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched_volcano.extender.cached_pod_states import CachedPodStates
from cedana_sched_volcano.extender.configuration import Configuration
from cedana_sched_volcano.objects import POD_GROUPS
from tests.unit.kube.moody_api_server import MoodyApiServer


@pytest.mark.parametrize(
    "served", [EVERYWHERE, ServedNamespaces(frozenset({"kube-system"}))], ids=["served", "excluded"]
)
async def test_who_is_in_an_excluded_namespace_may_go_and_takes_room_all_the_same(served: ServedNamespaces) -> None:
    server, metadata = MoodyApiServer(), {"name": "one", "namespace": "kube-system"}
    server.put(
        PODS,
        {
            "metadata": {**metadata, "uid": "pod-1", "labels": {names.PROTECTED: "true"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running"},
        },
    )
    server.put(NODES, {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}})
    server.put(POD_GROUPS, {"metadata": metadata, "spec": {"minMember": 1}})
    server.put(CHECKPOINTS, {"metadata": metadata, "spec": {"identity": {"id": "md"}, "podRef": {"uid": "pod-1"}}})
    server.put(PREEMPTION_HOLDS, {"metadata": metadata, "spec": {"reason": "x"}})
    async with server.serving() as api, asyncio.TaskGroup() as group, asyncio.timeout(60):
        holding = CachedPodStates(api, served=served)
        running = group.create_task(holding.run())
        for informer in holding._informers():
            await informer.synced.wait()
        standing, free = holding.state_of("pod-1"), holding.free_resources("n1", "preemptor")
        shown = [len(informer) for informer in (holding._pods, holding._groups, holding._checkpoints, holding._holds)]
        running.cancel()
    assert (standing is not None) is (served is EVERYWHERE)
    assert shown == ([1] * 4 if served is EVERYWHERE else [0] * 4)
    assert free is not None
    assert free["pods"] == 8


def test_it_reads_which_namespaces_are_excluded() -> None:
    read = Configuration.model_validate({"namespace": "ours", "excludedNamespaces": ["monitoring"]})
    assert read.served_namespaces == ServedNamespaces(frozenset({*NEVER_TOUCHED, "ours", "monitoring"}))
