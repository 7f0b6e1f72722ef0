"""A frozen, committed pod ends when it is deleted, not before, and not never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cedana_sched.cluster.node.pending_kills import PendingKills
from cedana_sched.snapshot.freezer import FreezerError
from tests.unit.runtime_handler.test_whole_files import full_disk


class Killer:
    """Remembers whom it killed; fails as often as it is told."""

    def __init__(self) -> None:
        self.killed: list[str] = []
        self.failures = 0
        self.done = asyncio.Event()

    async def __call__(self, pod: str) -> None:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise FreezerError("it does not go")
        self.killed.append(pod)
        self.done.set()


@pytest.fixture
async def killer() -> Killer:
    return Killer()


@pytest.fixture
async def pods(tmp_path: Path, killer: Killer) -> AsyncIterator[PendingKills]:
    async with PendingKills(tmp_path / "doomed", killer) as pods:
        yield pods


async def test_it_is_killed_by_its_deletion(pods: PendingKills, killer: Killer) -> None:
    await pods.add("p1", "c1")
    assert "p1" in pods
    assert killer.killed == []
    await pods.on_deleted("p2")
    await pods.on_deleted("p1")
    assert killer.killed == ["p1"]
    assert "p1" not in pods


async def test_kubelet_that_starts_again_what_dies_must_have_seen_the_deletion(
    pods: PendingKills, killer: Killer
) -> None:
    await pods.add("p1", "c1")
    deletion = asyncio.create_task(pods.on_deleted("p1", starts_again=True))
    for _ in range(20):
        await asyncio.sleep(0)
    assert killer.killed == []
    await pods.on_container_ending("p1")
    await asyncio.wait_for(deletion, 60)
    assert killer.killed == ["p1"]


async def test_kubelet_must_have_seen_a_deletion_that_came_before_the_checkpoint_as_well(
    pods: PendingKills, killer: Killer
) -> None:
    await pods.on_deleted("p1", starts_again=True)
    dooming = asyncio.create_task(pods.add("p1", "c1"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert killer.killed == []
    await pods.on_container_ending("p1")
    assert await asyncio.wait_for(dooming, 60) is True
    assert killer.killed == ["p1"]


@pytest.mark.parametrize("is_doomed_first", [True, False])
async def test_kubelet_that_has_called_before_the_watch_showed_the_deletion_is_not_waited_for(
    pods: PendingKills, killer: Killer, is_doomed_first: bool
) -> None:
    """It does not call again: its call of a torn eviction is what holds the pod."""
    await pods.on_container_ending("p1")
    if is_doomed_first:
        await pods.add("p1", "c1")
    await asyncio.wait_for(pods.on_deleted("p1", starts_again=True), 60)
    if not is_doomed_first:
        await asyncio.wait_for(pods.add("p1", "c1"), 60)
    assert killer.killed == ["p1"]


async def test_kubelet_that_does_not_call_is_not_waited_for_for_ever(tmp_path: Path, killer: Killer) -> None:
    async with PendingKills(tmp_path / "doomed", killer, kubelet_seconds=0.01) as pods:
        await pods.add("p1", "c1")
        await asyncio.wait_for(pods.on_deleted("p1", starts_again=True), 60)
    assert killer.killed == ["p1"]


async def test_pod_that_goes_before_the_kubelet_calls_is_not_waited_for(pods: PendingKills, killer: Killer) -> None:
    await pods.add("p1", "c1")
    deletion = asyncio.create_task(pods.on_deleted("p1", starts_again=True))
    await asyncio.sleep(0)
    pods.drop("p1")
    await asyncio.wait_for(deletion, 60)
    assert killer.killed == []


async def test_a_container_that_the_kubelet_ends_is_no_deletion(pods: PendingKills, killer: Killer) -> None:
    """A probe has failed long ago: the Job would count what is killed before its deletion."""
    await pods.on_container_ending("p1")
    await pods.add("p1", "c1")
    assert killer.killed == []
    await pods.on_container_ending("p1")
    assert killer.killed == ["p1"], "what the kubelet ends cannot end by itself: it is frozen"


async def test_a_pod_that_is_deleted_already_is_killed_at_once(pods: PendingKills, killer: Killer) -> None:
    await pods.on_deleted("p1")
    assert killer.killed == []
    await pods.add("p1", "c1")
    assert killer.killed == ["p1"]
    assert "p1" not in pods


async def test_the_watch_and_the_kubelet_kill_it_one_after_the_other(pods: PendingKills, killer: Killer) -> None:
    await pods.add("p1", "c1")
    await asyncio.gather(pods.on_deleted("p1"), pods.on_deleted("p1"))
    assert "p1" not in pods
    assert set(killer.killed) == {"p1"}


async def test_nothing_is_killed_by_time(tmp_path: Path, killer: Killer) -> None:
    """Its eviction may still be held: only the coordinator says when that was released."""
    others = asyncio.all_tasks()
    async with PendingKills(tmp_path, killer) as pods:
        await pods.add("p1", "c1")
        assert asyncio.all_tasks() == others, "something waits to kill it"
    async with PendingKills(tmp_path, killer) as pods:
        assert asyncio.all_tasks() == others, "something waits to kill it after a restart"
        assert "p1" in pods


async def test_a_pod_that_nobody_deletes_is_ended_on_demand(tmp_path: Path, killer: Killer) -> None:
    async with PendingKills(tmp_path, killer) as pods:
        await pods.add("p1", "c1")
    async with PendingKills(tmp_path, killer) as pods:
        await pods.kill_now("p1", "c1")
        assert killer.killed == ["p1"]
        assert "p1" not in pods
    assert list(tmp_path.iterdir()) == []


async def test_on_demand_only_the_checkpoint_that_dooms_a_pod_ends_it(pods: PendingKills, killer: Killer) -> None:
    await pods.kill_now("p1", "c1")
    await pods.add("p1", "c1")
    await pods.kill_now("p1", "c0")
    assert killer.killed == []
    assert "p1" in pods
    await pods.cancel("p1", "c1")
    await pods.kill_now("p1", "c1")
    assert killer.killed == []


async def test_an_agent_that_is_started_anew_knows_who_is_doomed(tmp_path: Path, killer: Killer) -> None:
    async with PendingKills(tmp_path, killer) as pods:
        await pods.add("p1", "c1")
    async with PendingKills(tmp_path, killer) as pods:
        assert "p1" in pods
        await pods.on_deleted("p1")
    assert killer.killed == ["p1"]
    async with PendingKills(tmp_path, killer) as pods:
        assert "p1" not in pods


async def test_a_pod_that_did_not_go_stays_doomed(pods: PendingKills, killer: Killer) -> None:
    await pods.add("p1", "c1")
    killer.failures = 1
    with pytest.raises(FreezerError):
        await pods.on_deleted("p1")
    assert "p1" in pods
    await pods.on_deleted("p1")
    assert killer.killed == ["p1"]


async def test_a_pod_that_is_no_more_is_forgotten(pods: PendingKills, killer: Killer, tmp_path: Path) -> None:
    await pods.add("p1", "c1")
    await pods.on_deleted("p2")
    for pod in ("p1", "p2"):
        pods.drop(pod)
    assert "p1" not in pods
    assert list((tmp_path / "doomed").iterdir()) == []
    await pods.add("p2", "c1")
    assert killer.killed == []


async def test_it_is_spared_by_the_checkpoint_that_doomed_it_alone(pods: PendingKills, killer: Killer) -> None:
    assert await pods.add("p1", "c1") is False
    await pods.cancel("p1", "c0")
    assert "p1" in pods
    await pods.cancel("p1", "c1")
    assert "p1" not in pods
    await pods.on_deleted("p1")
    assert killer.killed == []


async def test_whose_deletion_was_seen_is_not_spared(pods: PendingKills, killer: Killer) -> None:
    await pods.add("p1", "c1")
    killer.failures = 1
    with pytest.raises(FreezerError):
        await pods.on_deleted("p1")
    await pods.cancel("p1", "c1")
    assert "p1" in pods
    await pods.on_deleted("p1")
    assert killer.killed == ["p1"]


async def test_an_agent_that_was_restarted_spares_by_what_is_written_down(tmp_path: Path, killer: Killer) -> None:
    async with PendingKills(tmp_path, killer) as before:
        await before.add("p1", "c1")
    async with PendingKills(tmp_path, killer) as after:
        await after.cancel("p1", "c0")
        assert "p1" in after
        await after.cancel("p1", "c1")
        assert "p1" not in after
    assert list(tmp_path.iterdir()) == []


async def test_an_agent_that_is_killed_while_it_writes_dooms_nobody(tmp_path: Path, killer: Killer) -> None:
    (tmp_path / ".p1.0123456789abcdef").write_text("c")
    async with PendingKills(tmp_path, killer) as pods:
        assert "p1" not in pods
        assert ".p1.0123456789abcdef" not in pods
        assert list(tmp_path.iterdir()) == []


async def test_a_pod_is_not_doomed_where_that_cannot_be_written(pods: PendingKills, tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="too large"):
        await pods.add("p1", "c1")
    assert "p1" not in pods
    assert list((tmp_path / "doomed").iterdir()) == []


@pytest.fixture
def by_half(tmp_path: Path) -> Path:
    """What an agent of an earlier version has left that was killed while it wrote, or whose /run was full."""
    (tmp_path / "p1").touch()
    return tmp_path


@pytest.mark.parametrize("is_ordered_again", [True, False])
async def test_a_pod_that_was_ordered_by_half_is_spared(by_half: Path, killer: Killer, is_ordered_again: bool) -> None:
    async with PendingKills(by_half, killer) as pods:
        assert "p1" in pods
        if is_ordered_again:
            assert await pods.add("p1", "c1") is False
            await pods.cancel("p1", "c0")
            assert "p1" in pods
        await pods.cancel("p1", "c1")
        assert "p1" not in pods
    assert list(by_half.iterdir()) == []
    assert killer.killed == []


@pytest.mark.parametrize("is_ordered_again", [True, False])
async def test_a_pod_that_was_ordered_by_half_is_ended_on_demand(
    by_half: Path, killer: Killer, is_ordered_again: bool
) -> None:
    async with PendingKills(by_half, killer) as pods:
        if is_ordered_again:
            assert await pods.add("p1", "c1") is False
            assert await pods.kill_now("p1", "c0") is False
        assert await pods.kill_now("p1", "c1") is True
        assert "p1" not in pods
    assert killer.killed == ["p1"]


async def test_a_pod_that_is_doomed_anew_is_waited_for_anew(pods: PendingKills, killer: Killer) -> None:
    await pods.add("p1", "c1")
    await pods.cancel("p1", "c1")
    await pods.add("p1", "c2")
    deletion = asyncio.create_task(pods.on_deleted("p1", starts_again=True))
    for _ in range(20):
        await asyncio.sleep(0)
    assert killer.killed == []
    await pods.on_container_ending("p1")
    await asyncio.wait_for(deletion, 60)
    assert killer.killed == ["p1"]
