"""Marks on pods become reports: one for each wish of the scheduler."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cedana_sched.model.objects import names
from tests.unit.adapter.marked_cluster import Cluster, followed, mark, nothing, preempted, stale


async def test_a_mark_is_told_once_however_often_it_is_refreshed() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        begun = mark()
        cluster.put()
        cluster.put(text=begun)
        signal = (await preempted(heard)).signal
        assert [(one.workload.uid, str(one.identity.id), one.gang) for one in signal.victims] == [
            ("uid-md-0", "md", None)
        ]
        assert (signal.adapter, signal.reason, signal.held) == ("sched", "PreemptionByScheduler", None)
        cluster.put(text=begun)
        cluster.put(text=begun, phase="Running")
        await nothing(heard)


async def test_what_is_pending_is_told_again_under_the_same_uid() -> None:
    before, after, begun = Cluster(), Cluster(), mark()
    before.put(text=begun)
    after.put(text=begun)
    async with followed(before) as heard, followed(after) as again:
        assert (await preempted(heard)).signal.uid == (await preempted(again)).signal.uid


@pytest.mark.parametrize(
    "fields", [{"scheduler": "other"}, {"phase": "Pending"}, {"deleted": True}, {"of": {names.ID: "no name"}}]
)
async def test_what_is_not_evicted_or_cannot_be_saved_is_not_told(fields: dict[str, Any]) -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(text=mark(), **fields)
        cluster.put("md-1", text="nonsense")
        cluster.put("md-2", text=stale())
        await nothing(heard)


async def test_an_eviction_that_went_past_the_webhook_is_told_with_its_end() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        cluster.put(deleted=True)
        await nothing(heard)
        cluster.put(deleted=True, disrupted=True)
        signal = (await preempted(heard)).signal
        assert signal.not_after == datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp()
        cluster.put(deleted=True, disrupted=True)
        await nothing(heard)
    async with followed(cluster) as again:
        assert (await preempted(again)).signal.uid == signal.uid


async def test_an_eviction_that_was_released_is_not_told_as_a_deletion() -> None:
    cluster = Cluster()
    async with followed(cluster) as heard:
        begun = mark()
        cluster.put(text=begun)
        await preempted(heard)
        cluster.put(text=begun, deleted=True, disrupted=True)
        cluster.put(text=begun, deleted=True, disrupted=True)
        await nothing(heard)
