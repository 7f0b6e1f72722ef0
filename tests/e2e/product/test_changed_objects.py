"""Somebody changes a byte in an object of the bucket while a pod is away: nothing of what it belongs to is restored.

Whoever should have continued from it says which object it is, and goes on as its policy says.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import Any

import pytest

from cedana_sched.model.objects.names import API_VERSION, POLICY
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.model.records import CheckpointStep, RestoreStep
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.counting import ALL, COUNTS, begun, counting
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import COMPLETION_INDEX, Following
from tests.e2e.product.history import COORDINATOR
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import all_at
from tests.e2e.product.policies import own_policy
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed
from tests.e2e.product.store_faults import change_bytes

pytestmark = pytest.mark.any_shape

HEAD, BODY, CHUNK, AID = range(4)
"""Which object of its snapshot is changed, by index: the last one's only helps the next dump."""
SAID = {
    HEAD: r"snapshot \S+/0/main@1: .*seal",
    BODY: r"snapshot \S+/1/main@1: .*seal",
    CHUNK: r"chunk \d+ .* of stream \S+ in pack \S+ is damaged",
}


async def _saved(namespace: Namespace, image: str, bio: Following, pods: int, policy: str = "default") -> None:
    """Each pod of a Job is away, and its snapshot committed."""
    body = indexed_job("md", "bio", image, *counting(mebibytes=8), pods=pods)
    body["spec"]["template"]["metadata"]["annotations"] = {POLICY: policy}
    await namespace.apply(body)
    await begun(bio, *range(pods))
    await namespace.apply(indexed_job("train", "ml", image, "sleep", "3600", pods=2))
    await all_at(namespace, "Checkpoint", CheckpointStep.READY, count=pods)


class _Changes:
    """Changes one byte of an object of an index' snapshot."""

    def __init__(self, cluster: Cluster, api: Api, namespace: Namespace) -> None:
        self._cluster = cluster
        self._api = api
        self._folder = f"v1/{namespace.name}.*"

    async def manifest(self, index: int, at: str) -> None:
        assert len(await self._change(f"snapshots/*/{index}/main/*.manifest", at)) == 1

    async def aid(self, index: int) -> str:
        """The fingerprints of its pages; which writer has written the snapshot."""
        (changed,) = await self._change(f"pages/*/{index}/main/*", "size / 2")
        return changed.rpartition("-")[2]

    async def chunk(self, writer: str) -> None:
        assert await self._change(f"packs/{writer}-*", "size / 2")

    async def _change(self, pattern: str, at: str) -> list[str]:
        return await change_bytes(self._cluster, self._api, f"{self._folder}/{pattern}", at)


def _orders(audit: Audit, namespace: Namespace, restore: Object) -> set[str]:
    """What the coordinator has ordered of a return."""
    name = restore["metadata"]["name"]
    writes = audit.writes(namespace=namespace.name, name=name, resource="restores/status", user=COORDINATOR)
    statuses: list[dict[str, Any]] = [one.body.get("status") or {} for one in writes if isinstance(one.body, dict)]
    return {str(status["order"]["order"]["type"]) for status in statuses if status.get("order")}


@pytest.mark.exhaustive  # over a minute; that a pod fails is tried each time
async def test_nothing_of_it_is_restored_and_the_pod_says_which_object_it_is(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api, audit: Audit
) -> None:
    changes = _Changes(cluster, api, namespace)
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await _saved(namespace, toolbox, bio, len(SAID) + 1)
        await changes.manifest(HEAD, "200")
        await changes.manifest(BODY, "size - 1")
        await changes.chunk(await changes.aid(CHUNK))
        await changes.aid(AID)
        before = {restore["metadata"]["uid"] for restore in await _restores(namespace)}
        await namespace.delete("batch/v1", "Job", "train")
        by_index = await _returns(namespace, len(SAID) + 1, before)
        for index, pattern in SAID.items():
            restore = by_index[index]
            said = "".join(
                await wait_for_messages(namespace, restore["spec"]["podRef"]["name"], "ColdStart", kind="Warning")
            )
            assert re.search(pattern, said), said
            assert restore["status"]["cold"] is True
            assert _orders(audit, namespace, restore).isdisjoint({"RestoreSnapshot"}), "CRIU was shown nothing of it"
        assert "RestoreSnapshot" in _orders(audit, namespace, by_index[AID]), "else it would show nothing"
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))
        for index in SAID:
            assert bio.lines(index)[-COUNTS:] == ALL, f"index {index} began anew"
            assert len(bio.lines(index)) > COUNTS
        assert bio.lines(AID) == ALL, "it has lost nothing"


async def _restores(namespace: Namespace) -> list[Object]:
    return await namespace.api.objects(API_VERSION, "Restore", namespace.name)


async def _returns(namespace: Namespace, pods: int, before: Collection[str]) -> dict[int, Object]:
    """By index, once all run or have: those of first starts, which were there before, may be forgotten by then."""
    over = {RestoreStep.RUNNING, RestoreStep.ENDED}

    def theirs(found: list[Object]) -> list[Object]:
        return [
            one for one in found if one["metadata"]["uid"] not in before and one.get("status", {}).get("step") in over
        ]

    found = await wait_for_all(
        namespace.api, API_VERSION, "Restore", lambda found: len(theirs(found)) == pods,
        namespace=namespace.name, within=120,
    )  # fmt: skip
    return {one["spec"]["identity"].get("index", 0): one for one in theirs(found)}


async def test_pod_fails_where_the_policy_says_so(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api
) -> None:
    async with (
        groups(namespace), Following.of(namespace, "md") as bio,
        own_policy(namespace, onRestoreFailure=OnRestoreFailure.FAIL) as policy,
    ):  # fmt: skip
        await _saved(namespace, toolbox, bio, 4, policy)
        lines = {index: len(bio.lines(index)) for index in range(4)}
        for index in range(4):
            await _Changes(cluster, api, namespace).manifest(index, "200")
        await namespace.delete("batch/v1", "Job", "train")
        await namespace.wait("batch/v1", "Job", "md", has_condition("Failed"), within=120)
        failed = await namespace.pods("job-name=md", phase="Failed")
        said = await wait_for_messages(namespace, failed[0]["metadata"]["name"], "RestoreFailed", kind="Warning")
        assert "seal" in "".join(said)
        for pod in failed:
            index = int(pod["metadata"]["annotations"][COMPLETION_INDEX])
            assert len(bio.lines(index)) == lines[index], "it executed nothing"
