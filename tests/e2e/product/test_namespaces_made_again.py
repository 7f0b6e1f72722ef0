"""Whoever gets a namespace of a name that somebody else has, or had before, gets nothing of what was saved in that one.

Its Checkpoints go with a namespace, and so do its snapshots. Here somebody who can write to the bucket keeps them, or
another cluster has saved them there, sealed with the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cedana_sched.model.identity import CHECKPOINT_VARIABLE, namespace_store_key
from cedana_sched.model.objects.names import EXPECT_SNAPSHOT, POLICY
from cedana_sched.model.records import CheckpointStep
from tests.cluster.api.client import Api, Object
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.bucket import run_in_bucket
from tests.e2e.product.counting import ALL, COUNTS, begun, counting
from tests.e2e.product.events import wait_for_messages
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import all_at
from tests.e2e.product.policies import own_policy
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import completed

pytestmark = [
    pytest.mark.any_shape,
    pytest.mark.exhaustive,  # units show it each time; namespaces come and go
]

_SOON = 20
"""Seconds after which a return is given up: who can write to a store may keep a namespace from being continued."""


def _job(image: str, *command: str, policy: str = "default", continues: str = "false") -> Object:
    body = indexed_job("md", "bio", image, *command, cpu="600m", env={CHECKPOINT_VARIABLE: "protein"})
    body["spec"]["template"]["metadata"]["annotations"] = {POLICY: policy, EXPECT_SNAPSHOT: continues}
    return body


async def _kept(namespace: Namespace) -> str:
    """What the store calls it."""
    body = await namespace.api.get("v1", "Namespace", namespace.name)
    return namespace_store_key(namespace.name, body["metadata"]["uid"])


@asynccontextmanager
async def _made(cluster: Cluster, api: Api, name: str) -> AsyncIterator[Namespace]:
    async with Namespace.created(cluster, api, name) as namespace, groups(namespace):
        yield namespace
        await namespace.kubectl("delete", "cckpt", "--all", "--timeout=120s")
        # a namespace whose pods are still ending is looked at again after half of their grace period, which is long
        await namespace.kubectl("delete", "job", "--all", "--cascade=foreground", "--timeout=180s")
        await namespace.kubectl("delete", "namespace", name, "--timeout=180s")


async def _preempted(namespace: Namespace, image: str) -> None:
    await namespace.apply(indexed_job("train", "ml", image, "sleep", "3600", pods=2))
    await all_at(namespace, "Checkpoint", CheckpointStep.READY)


async def test_a_namespace_of_the_same_name_continues_nothing(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api
) -> None:
    name = f"{namespace.name}-a"
    async with _made(cluster, api, name) as first:
        async with Following.of(first, "md") as bio:
            await first.apply(_job(toolbox, *counting(counts=None)))
            await begun(bio, 0)
            await _preempted(first, toolbox)
        older = await _kept(first)
        await run_in_bucket(cluster, api, f"cp -a 'v1/{older}' '../stolen-{older}'")

    async with (
        _made(cluster, api, name) as again, own_policy(again, restoreDeadlineSeconds=_SOON) as policy,
        Following.of(again, "md") as bio,
    ):  # fmt: skip
        newer = await _kept(again)
        await run_in_bucket(cluster, api, f"rm -rf 'v1/{older}' && cp -a '../stolen-{older}' 'v1/{older}'")
        await again.apply(_job(toolbox, *counting(), policy=policy))
        await begun(bio, 0)
        assert bio.lines(0)[0] == "0", "it is the first of its namespace"

        await _preempted(again, toolbox)
        # what was saved now is exchanged for what was saved then, under the very names of now
        await run_in_bucket(cluster, api, f"rm -rf 'v1/{newer}' 'v1/{older}' && mv '../stolen-{older}' 'v1/{newer}'")
        await run_in_bucket(cluster, api, f"cd 'v1/{newer}/snapshots' && [ $(find . -name '*.manifest' | wc -l) = 1 ]")
        await again.delete("batch/v1", "Job", "train")
        await completed(again, "md")
        await asyncio.wait_for(bio.read(), patient(60))
        assert bio.lines(0)[-COUNTS:] == ALL, "it began anew"
        said = await wait_for_messages(again, bio.pods[0][-1], "ColdStart", kind="Warning")
        assert "does not unwrap" in "".join(said)


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_bucket_of_two_clusters_has_for_each_its_own_unless_the_name_is_shared(
    is_shared: bool, namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api
) -> None:
    """The other cluster is ours before: all that a cluster has of another one is what it finds in the bucket."""
    name = f"{namespace.name}-b"
    if is_shared:
        await installed_with_kueue.ensure(kueue={"enabled": True}, storage={"sharedNamespaces": [name]})
    async with _made(cluster, api, name) as theirs:
        async with Following.of(theirs, "md") as bio:
            await theirs.apply(_job(toolbox, *counting(counts=None)))
            await begun(bio, 0)
            await _preempted(theirs, toolbox)
        await run_in_bucket(cluster, api, f"mkdir '../{name}' && cp -a v1/'{name}'* '../{name}'")

    async with _made(cluster, api, name) as ours, Following.of(ours, "md") as bio:
        await run_in_bucket(cluster, api, f"rm -rf v1/'{name}'* && mv '../{name}'/* v1 && rmdir '../{name}'")
        await ours.apply(_job(toolbox, *counting(counts=None), continues="true"))
        await begun(bio, 0)
        assert (bio.lines(0)[0] != "0") == is_shared, "it goes on with what the other one has saved, if that is shared"
        said = await wait_for_messages(ours, bio.pods[0][0], "Restored" if is_shared else "ColdStart")
        assert ("protein/0@1" if is_shared else "the store has none of this namespace") in "".join(said)
