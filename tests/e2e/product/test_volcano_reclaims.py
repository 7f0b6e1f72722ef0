"""Volcano takes back what one queue has borrowed, with its own tiers: nothing of the work is lost."""

from __future__ import annotations

import asyncio

import pytest

from cedana_sched.model.objects.names import API_VERSION, PROTECT
from cedana_sched.model.records import CheckpointStep
from cedana_sched_volcano.vcjob_admission import HARMLESS
from tests.cluster.api.client import Api
from tests.cluster.api.waiting import has_condition
from tests.cluster.fixtures.audit import Audit, Write
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.cluster.patience import patient
from tests.e2e.product.counting import ALL, begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.phases import all_at
from tests.e2e.product.volcano_queues import (
    HALF_A_NODE,
    SCHEDULER,
    completed,
    groups,
    reclaim,
    vcjob,
)
from tests.e2e.product.webhooks_away import no_webhooks

pytestmark = pytest.mark.shape("volcano")

ASKED = {"CEDANA_CHECKPOINT": "md"}
PREEMPTED = {"type": "DisruptionTarget", "status": "True"}
INDEXED = {
    "parallelism": 4,
    "completions": 4,
    "completionMode": "Indexed",
    "backoffLimit": 0,
    "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [PREEMPTED]}]},
}
"""Kubernetes counts an evicted pod of a Job as a failure unless it is told not to."""


@pytest.mark.exhaustive  # those of a gang are tried each time
async def test_reclaimed_pods_continue_where_they_stopped(
    namespace: Namespace, toolbox: str, installed_with_volcano: Product, audit: Audit
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(vcjob("md", "bio", namespace, toolbox, *counting(), pods=4, env=ASKED))
        await begun(bio, *range(4))
        await reclaim(namespace, toolbox)
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))

        assert [bio.lines(index) for index in range(4)] == [ALL] * 4
        moved = _moved(bio)
        assert len(moved) == 2, "as many as ml needs, and no more"
        assert await _saved(namespace) == moved, "whom Volcano chooses while these are being saved is not frozen"
        assert _refused(audit, namespace), "held at the write of the pod's status"


async def test_a_gang_goes_and_comes_back_as_one(
    namespace: Namespace, toolbox: str, installed_with_volcano: Product
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        work = counting(counts=None)
        await namespace.apply(vcjob("md", "bio", namespace, toolbox, *work, pods=4, at_least=4, env=ASKED))
        await begun(bio, *range(4))
        await reclaim(namespace, toolbox)
        await enough(namespace, bio, "md", 4, completed=completed)

        assert _moved(bio) == await _saved(namespace) == [0, 1, 2, 3]


@pytest.mark.exhaustive  # the pods of a Deployment are protected so
async def test_a_queue_protects_pods_whose_owner_wrote_nothing(
    namespace: Namespace, toolbox: str, installed_with_volcano: Product
) -> None:
    async with groups(namespace, annotations={PROTECT: "true"}), Following.of(namespace, "md") as bio:
        main = container(toolbox, *counting(), resources={"requests": {"cpu": HALF_A_NODE}})
        body = job("md", main, schedulerName="volcano", fields=INDEXED)
        queue = {"scheduling.volcano.sh/queue-name": f"{namespace.name}-bio"}
        body["spec"]["template"]["metadata"]["annotations"] = queue
        await namespace.apply(body)
        await begun(bio, *range(4))
        await reclaim(namespace, toolbox)
        await namespace.wait("batch/v1", "Job", "md", has_condition("Complete"), within=180)
        await asyncio.wait_for(bio.read(), patient(60))

        assert [bio.lines(index) for index in range(4)] == [ALL] * 4
        assert _moved(bio)
        assert set(_moved(bio)) <= set(await _saved(namespace))


@pytest.mark.exhaustive  # without a cluster it is tried each time
async def test_deadly_policies_are_rewritten_on_request(
    namespace: Namespace, toolbox: str, installed_with_volcano: Product
) -> None:
    deadly = [{"event": "PodFailed", "action": "TerminateJob"}, {"event": "PodEvicted", "action": "AbortJob"}]
    async with groups(namespace), Following.of(namespace, "md") as bio:
        body = vcjob(
            "md",
            "bio",
            namespace,
            toolbox,
            *counting(),
            pods=4,
            env=ASKED,
            annotations={HARMLESS: "true"},
            policies=deadly,
        )
        await namespace.apply(body)
        await begun(bio, *range(4))
        await reclaim(namespace, toolbox)
        await completed(namespace, "md")
        await asyncio.wait_for(bio.read(), patient(60))
        assert [bio.lines(index) for index in range(4)] == [ALL] * 4
        assert len(_moved(bio)) == 2


async def test_without_webhooks_the_prestop_saves_them(
    namespace: Namespace, toolbox: str, installed_with_volcano: Product, api: Api, audit: Audit
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(vcjob("md", "bio", namespace, toolbox, *counting(), pods=4, env=ASKED))
        await begun(bio, *range(4))
        async with no_webhooks(api):
            await namespace.apply(vcjob("train", "ml", namespace, toolbox, "true", pods=2, at_least=2))
            await completed(namespace, "train")
            assert not _refused(audit, namespace)
            assert len(await all_at(namespace, "Checkpoint", CheckpointStep.READY, count=2)) == 2


def _moved(following: Following) -> list[int]:
    """Who ran in two pods."""
    return [index for index in range(4) if len(following.pods[index]) == 2]


async def _saved(namespace: Namespace) -> list[int]:
    checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    # a coordinator that dies meanwhile hears of the same eviction again: another Checkpoint, of the same snapshot
    snapshots = (one["status"]["snapshot"] for one in checkpoints if one["status"]["phase"] == "Ready")
    return sorted(index for index, _ in {(one["index"], one["generation"]) for one in snapshots})


def _refused(audit: Audit, namespace: Namespace) -> list[Write]:
    writes = audit.writes(namespace=namespace.name, resource="pods/status")
    return [one for one in writes if one.user == SCHEDULER and one.code == 429]
