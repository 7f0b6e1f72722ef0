"""Two research groups, one cohort: bio borrows, ml reclaims, and nothing of bio's work is lost."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise

import pytest

from cedana_sched.model.objects.names import API_VERSION, GROUP
from tests.cluster.fixtures.audit import Audit, Write
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.cordoning import cordoned
from tests.e2e.product.counting import begun, counting, enough
from tests.e2e.product.following import Following
from tests.e2e.product.history import Eviction
from tests.e2e.product.installation import Product
from tests.e2e.product.queues import groups, indexed_job
from tests.e2e.product.reclaiming import reclaim

pytestmark = pytest.mark.any_shape

_PODS = 4


async def _told(namespace: Namespace, job: str) -> dict[str, list[str]]:
    """What `kubectl describe job` shows of us, by its word."""
    told: dict[str, list[str]] = {}
    for event in await namespace.events(job):
        if event["source"].get("component") == "cedana-sched":
            told.setdefault(event["reason"], []).append(event["message"])
    return told


@pytest.mark.nodes(2)
async def test_reclaimed_job_continues_where_it_stopped(
    namespace: Namespace, toolbox: str, installed_with_kueue: Product, audit: Audit
) -> None:
    async with groups(namespace), Following.of(namespace, "md") as bio:
        await namespace.apply(indexed_job("md", "bio", toolbox, *counting(counts=None), pods=_PODS))
        await begun(bio, *range(_PODS))

        left = bio.nodes[0][0]
        async with cordoned(namespace, left):
            await reclaim(namespace, toolbox)
            await enough(namespace, bio, "md", _PODS)

        for index in range(_PODS):
            assert bio.nodes[index][1] != left, "who comes back finds its snapshot on any node"
        checkpoints = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
        assert {one["status"]["phase"] for one in checkpoints} == {"Ready"}
        assert len(checkpoints) == _PODS
        _assert_in_order(Eviction.of(audit, namespace.name, "md"))
        await _assert_told(namespace)
        await _assert_shown(namespace)


def _assert_in_order(eviction: Eviction) -> None:
    """Kueue asks, is refused until all is committed and released, and then the pods go; nothing dies before."""
    steps = eviction.steps()
    for (before, earlier), (after, later) in pairwise(steps):
        assert earlier, before
        assert later, after
        assert _last(earlier) <= _first(later), f"{before}, then {after}"
    assert len(eviction.frozen) == len(eviction.committed) == len(eviction.deleted) == _PODS
    assert len(eviction.released) == 1, "by one annotation"
    assert len(eviction.suspended) == 1
    assert eviction.refused
    assert all("Held for checkpoint by cedana" in one.message for one in eviction.refused)
    assert _last(eviction.evicted) <= _first(eviction.refused)
    assert _last(eviction.refused) <= _first(eviction.suspended)
    deleted = {one.name: one for one in eviction.deleted}
    assert {one.name for one in eviction.died} >= set(deleted)
    for death in eviction.died:
        if death.name in deleted:
            assert deleted[death.name].received <= death.received, f"{death.name} lives until it is deleted"


def _first(writes: Iterable[Write]) -> datetime:
    """By when each was received: watchers hear of a write, and write themselves, before it is answered."""
    return min(write.received for write in writes)


def _last(writes: Iterable[Write]) -> datetime:
    return max(write.received for write in writes)


async def _assert_told(namespace: Namespace) -> None:
    told = await _told(namespace, "md")
    counts = {kind: len(texts) for kind, texts in told.items()}
    assert counts == {
        "CheckpointStarted": _PODS,
        "CheckpointCommitted": _PODS,
        "EvictionReleased": 1,
        "RestoreScheduled": _PODS,
        "Restored": _PODS,
    }


async def _assert_shown(namespace: Namespace) -> None:
    shown = await namespace.kubectl("get", "checkpoints.sched.cedana.ai")
    head, *lines = (line.split() for line in shown.splitlines())
    assert head[2:5] == ["INDEX", "GEN", "PHASE"]
    assert sorted(line[2:5] for line in lines) == [[str(index), "1", "Ready"] for index in range(_PODS)], shown
    by_category = await namespace.kubectl("get", "cedana", "-o", "name")
    assert {f"checkpoint.{GROUP}/{line[0]}" for line in lines} <= set(by_category.splitlines())
    workload = await namespace.kubectl("describe", "workloads")
    assert "continues from" in workload
