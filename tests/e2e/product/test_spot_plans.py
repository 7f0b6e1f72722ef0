"""Six pods of a node that ends in 30 seconds, whose full snapshots need three times as long."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION, POLICY, PROTECT
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, job, pod
from tests.cluster.patience import patient
from tests.e2e.product.cordoning import cordoned
from tests.e2e.product.counting import begun, counting
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.lost_nodes import node_of_store
from tests.e2e.product.owners import LABEL
from tests.e2e.product.policies import own_policy
from tests.e2e.product.spot import INTERRUPTIONS, announced
from tests.e2e.product.store_faults import slowed
from tests.servers.metadata import FakeAws

pytestmark = [
    pytest.mark.nodes(2),
    pytest.mark.any_shape,
    pytest.mark.exhaustive,
    pytest.mark.timeout(patient(1500)),
]

NOTICE_SECONDS: Final = 30
PODS: Final = 6
MEGABITS: Final = 14
MEBIBYTES: Final = 23
"""In each program, beside its interpreter: more than the least that a rate is measured by."""
MEMORY: Final = 30
"""Mebibytes that each pod requests."""
NOT_SAVED: Final = re.compile(r"needs (\d+) s at \d+ MB/s, (\d+) s are left, (\d+) s of them for pods with more work")


@pytest_asyncio.fixture(loop_scope="session")
async def protected(namespace: Namespace, release: Product, cluster: Cluster, api: Api) -> AsyncIterator[Namespace]:
    """A namespace that protects all of its pods, on nodes of AWS with a slow path to the store."""
    await release.ensure(kubernetes={"enabled": True}, agent={"interruptions": {**INTERRUPTIONS, "provider": "aws"}})
    await namespace.kubectl("label", "namespace", namespace.name, f"{PROTECT}=true")
    async with slowed(cluster, api, MEGABITS):
        yield namespace


def _template(name: str, image: str, cpu: str) -> Object:
    requests = {"cpu": cpu, "memory": f"{MEMORY}Mi"}
    main = container(image, *counting(counts=None, mebibytes=MEBIBYTES), resources={"requests": requests})
    return {"metadata": {"labels": {LABEL: name}}, "spec": pod(name, main)["spec"]}


def _job(name: str, image: str, pods: int = 1, cpu: str = "50m") -> Object:
    body = job(name, container(image), fields={"parallelism": pods, "completions": pods, "completionMode": "Indexed"})
    body["spec"] |= {"backoffLimit": 0, "template": _template(name, image, cpu)}
    return body


def _stateful_set(name: str, image: str) -> Object:
    """It replaces its pods at once; a Job waits for minutes once six have failed, whether it counts them or not."""
    template = _template(name, image, "50m")
    template["spec"]["restartPolicy"] = "Always"
    spec = {"serviceName": name, "replicas": PODS, "podManagementPolicy": "Parallel", "template": template}
    selector = {"selector": {"matchLabels": {LABEL: name}}}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": {**spec, **selector}}


async def test_increments_fit_into_a_notice_that_is_a_third_of_what_full_snapshots_need(
    protected: Namespace, toolbox: str
) -> None:
    often = {"intervalSeconds": 20, "maxFrozenPercent": 50}
    async with own_policy(protected, **often) as policy, Following.of(protected, "md", label=LABEL) as md:
        await protected.kubectl("annotate", "namespace", protected.name, f"{POLICY}={policy}")
        async with cordoned(protected, await node_of_store(protected)):
            await protected.apply(_stateful_set("md", toolbox))
            await begun(md, *range(PODS))
        ((node,),) = {tuple(md.nodes[index]) for index in range(PODS)}
        saved = await _saved(protected, "Interval", times=2, within=600)
        assert sum(_seconds_frozen(saved[index][0]) for index in range(PODS)) > 3 * NOTICE_SECONDS
        async with announced(FakeAws, protected, node, seconds=NOTICE_SECONDS, is_named=True) as ends_at:
            last = await _saved(protected, "NodeTermination")
            for index in range(PODS):
                await _goes_on(md, index)
                assert md.nodes[index][0] == node != md.nodes[index][1]
        assert all(_time(one, "commitTime") < ends_at for (one,) in last.values())
        assert "NotSavedInTime" not in {one["reason"] for one in await protected.events()}


async def test_most_work_is_saved_and_the_rest_explained_without_periodic_snapshots(
    protected: Namespace, toolbox: str
) -> None:
    async with (
        Following.of(protected, "probe") as probe,
        Following.of(protected, "cheap") as cheap,
        Following.of(protected, "dear") as dear,
    ):
        store = await node_of_store(protected)
        async with cordoned(protected, store):
            await protected.apply(_job("probe", toolbox))
            await begun(probe, 0)
        node = probe.nodes[0][0]
        async with cordoned(protected, node):  # measures the rate, and continues out of the way
            await protected.kubectl("delete", "pod", probe.pods[0][0], "--wait=false")
            await _goes_on(probe, 0)
        async with cordoned(protected, store):
            await protected.apply(_job("cheap", toolbox, PODS - 1), _job("dear", toolbox, cpu="300m"))
            await begun(cheap, *range(PODS - 1))
            await begun(dear, 0)
        async with announced(FakeAws, protected, node, seconds=NOTICE_SECONDS, is_named=True) as ends_at:
            reasons = [
                (await wait_for_messages(protected, cheap.pods[index][0], "NotSavedInTime"))[0]
                for index in range(PODS - 1)
            ]
            await _goes_on(dear, 0)
            assert dear.nodes[0][0] == node != dear.nodes[0][1]
            for index in range(PODS - 1):
                await begun(cheap, index, counts=len(cheap.lines(index)) + 20)
        last = await _saved(protected, "NodeTermination", pods=1)
    needed = [tuple(map(int, found.groups())) for one in reasons if (found := NOT_SAVED.search(one))]
    assert len(needed) == PODS - 1, reasons
    for seconds, left, taken in needed:
        assert seconds * PODS > 3 * NOTICE_SECONDS, reasons
        assert seconds <= left < seconds + taken, reasons
    ((saved,),) = last.values()
    assert saved["spec"]["podRef"]["name"] == dear.pods[0][0]
    assert _time(saved, "commitTime") < ends_at
    for index in range(PODS - 1):
        lines = cheap.lines(index)
        assert (lines, cheap.nodes[index]) == ([str(number) for number in range(len(lines))], [node]), "left alone"
    await _assert_no_pod_has_failed(protected, "cheap", "dear")


async def _goes_on(following: Following, index: int) -> None:
    """Wait until the second pod of an index has counted for a while; each number must have been said once."""
    while len(by_pod := following.by_pod(index)) < 2 or len(by_pod[1]) < 10:
        await asyncio.wait_for(following.said(index, len(following.lines(index)) + 1), patient(120))
    lines = following.lines(index)
    assert lines == [str(number) for number in range(len(lines))], by_pod


async def _saved(
    namespace: Namespace, reason: str, *, times: int = 1, pods: int = PODS, within: float = 60
) -> dict[int, list[Object]]:
    """Wait until so many pods have been saved so often for this reason; their Checkpoints in order, by index."""

    def by_index(found: list[Object]) -> dict[int, list[Object]]:
        saves: defaultdict[int, list[Object]] = defaultdict(list)
        for one in found:
            if one["spec"]["reason"] == reason and one.get("status", {}).get("phase") == "Ready":
                saves[one["spec"]["identity"]["index"]].append(one)
        return {index: sorted(ones, key=lambda one: _time(one, "commitTime")) for index, ones in saves.items()}

    found = await wait_for_all(
        namespace.api,
        API_VERSION,
        "Checkpoint",
        lambda found: sum(len(ones) >= times for ones in by_index(found).values()) >= pods,
        namespace=namespace.name,
        within=within,
    )
    return by_index(found)


def _time(checkpoint: Object, name: str) -> datetime:
    return datetime.fromisoformat(checkpoint["status"][name])


def _seconds_frozen(checkpoint: Object) -> float:
    return (_time(checkpoint, "commitTime") - _time(checkpoint, "freezeTime")).total_seconds()


async def _assert_no_pod_has_failed(namespace: Namespace, *jobs: str) -> None:
    for name in jobs:
        now = await namespace.get("batch/v1", "Job", name)
        assert now["status"].get("failed", 0) == 0, now["status"]
