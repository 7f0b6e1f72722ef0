"""Whoever gets a namespace of a name that somebody else has, or had before, gets nothing of what was saved in that one.

Its Checkpoints go with a namespace, and so do its snapshots. Here somebody who can write to the bucket keeps them. And
another cluster, which has a namespace of that name too, saves into the same bucket, sealed with the same key.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cedana_sched.model.identity import CHECKPOINT_VARIABLE, namespace_of_uid
from cedana_sched.model.objects.names import CONTINUES, POLICY
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
    pytest.mark.exhaustive,  # units show it each time; Jobs are preempted again and again
]

_SOON = 20
"""Seconds after which a return is given up: who can write to a store may keep a namespace from being continued."""


def _job(image: str, *command: str, policy: str = "default", continues: str = "false") -> Object:
    body = indexed_job("md", "bio", image, *command, cpu="600m", env={CHECKPOINT_VARIABLE: "protein"})
    body["spec"]["template"]["metadata"]["annotations"] = {POLICY: policy, CONTINUES: continues}
    return body


async def _kept(namespace: Namespace) -> str:
    """What the store calls it."""
    body = await namespace.api.get("v1", "Namespace", namespace.name)
    return namespace_of_uid(namespace.name, body["metadata"]["uid"])


@asynccontextmanager
async def _made(cluster: Cluster, api: Api, name: str) -> AsyncIterator[Namespace]:
    async with Namespace.created(cluster, api, name) as namespace, groups(namespace):
        yield namespace
        await namespace.kubectl("delete", "cckpt", "--all", "--timeout=120s")
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


async def test_what_another_cluster_has_saved_under_the_name_of_a_namespace_is_not_continued(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, cluster: Cluster, api: Api
) -> None:
    """What one cluster sees of another is the bucket. So what is saved here is called as the other one would call it."""
    ours, theirs = await _kept(namespace), namespace_of_uid(namespace.name, str(uuid.uuid4()))
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(_job(toolbox, *counting(counts=None)))
        await begun(bio, 0)
        await _preempted(namespace, toolbox)
        await run_in_bucket(cluster, api, f"mv 'v1/{ours}' 'v1/{theirs}'")
        for kind in ("job", "cckpt"):
            await namespace.kubectl("delete", kind, "--all", "--timeout=120s")

        said = await _returned(namespace, toolbox, bio, "ColdStart")
        assert bio.by_pod(0)[-1][0] == "0", "it began with what another cluster has saved"
        assert "the store has none of this namespace" in said

        await namespace.kubectl("delete", "job", "--all", "--timeout=120s")
        await run_in_bucket(cluster, api, f"rm -rf 'v1/{ours}' && mv 'v1/{theirs}' 'v1/{ours}'")
        said = await _returned(namespace, toolbox, bio, "Restored")
        assert bio.by_pod(0)[-1][0] != "0", "else it would show nothing"
        assert "protein/0@1" in said


async def _returned(namespace: Namespace, image: str, bio: Following, reason: str) -> str:
    """Run the Job as one of which somebody knows that the store has a snapshot; what is said of its pod."""
    lines = len(bio.lines(0))
    await namespace.apply(_job(image, *counting(counts=None), continues="true"))
    await asyncio.wait_for(bio.said(0, lines + 5), patient(120))
    return "".join(await wait_for_messages(namespace, bio.pods[0][-1], reason))
