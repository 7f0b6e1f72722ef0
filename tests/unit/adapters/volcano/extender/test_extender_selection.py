"""Volcano's order, how many of it are meant, and victim steering."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from cedana_sched_volcano.extender.pod_states_interface import ProtectedPodState
from cedana_sched_volcano.extender.selection import (
    Candidate,
    fraction_of_need_freed,
    select_sufficient_candidates,
    sort_in_volcano_order,
    steer_among_equals,
)


def pod(
    uid: str,
    *,
    job: str = "lab/a",
    queue: str | None = "bio",
    priority: int = 0,
    created: int = 0,
    unsaved: float | None = 0.0,
    **amounts: float,
) -> Candidate:
    """`unsaved` is None for who is not protected."""
    standing = None if unsaved is None else ProtectedPodState(may_go=False, unsaved_seconds=unsaved)
    at = f"2026-05-01T12:00:{created:02}Z"
    return Candidate(uid, job, queue, priority, at, amounts or {"cpu": 1000.0}, standing)


def uids(candidates: list[Candidate] | tuple[Candidate, ...] | None) -> str | None:
    return None if candidates is None else "".join(one.uid for one in candidates)


def test_lowest_priority_then_youngest_job_then_youngest_pod() -> None:
    found = [
        pod("a", job="lab/old", created=1),
        pod("b", job="lab/old", created=30),  # recreated since; its job is as old as before
        pod("c", job="lab/new", created=10),
        pod("d", job="lab/new", created=11),
        pod("e", job="lab/mean", created=50, priority=-1),
        pod("f", job="lab/great", created=50, priority=9),
    ]
    for seed in range(10):
        random.Random(seed).shuffle(found)
        assert uids(sort_in_volcano_order(found)) == "edcbaf"


def test_as_many_as_are_needed() -> None:
    these = [pod(name, cpu=1000.0, memory=100.0) for name in "abcd"]
    assert uids(select_sufficient_candidates(these, {"cpu": 1000.0})) == "a"
    assert uids(select_sufficient_candidates(these, {"cpu": 1001.0})) == "ab"
    assert uids(select_sufficient_candidates(these, {"cpu": 1000.05})) == "a"  # what Volcano takes for equal
    assert uids(select_sufficient_candidates(these, {"cpu": 1000.0, "memory": 250.0})) == "abc"
    assert uids(select_sufficient_candidates(these, {"cpu": 4001.0})) is None
    assert uids(select_sufficient_candidates(these, {"cpu": 4001.0}, {"cpu": 2001.0})) == "ab"
    assert uids(select_sufficient_candidates(these, {"cpu": 900.0}, {"cpu": 900.0})) == ""
    assert uids(select_sufficient_candidates(these, {"nvidia.com/gpu": 1.0})) is None


def test_who_has_nothing_of_what_is_scarce_is_passed_over() -> None:
    these = [pod("a", cpu=1000.0, pods=1.0), pod("b", cpu=1000.0, pods=1.0, gpu=1000.0)]
    need = {"gpu": 1000.0, "pods": 1.0}
    assert uids(select_sufficient_candidates(these, need, {"cpu": 9000.0})) == "b"
    assert uids(select_sufficient_candidates(these, {"pods": 1.0})) == "a"


def test_how_far_a_place_would_do() -> None:
    these = [pod("a", cpu=1000.0, memory=100.0)]
    assert fraction_of_need_freed(these, {"cpu": 2000.0}) == 0.5
    assert fraction_of_need_freed(these, {"cpu": 500.0}) == 1.0
    assert fraction_of_need_freed(these, {"cpu": 2000.0, "memory": 400.0}) == 0.25
    assert fraction_of_need_freed([], {}) == 0.0


def test_steering_exchanges_equals_and_nobody_else() -> None:
    ordered = [
        pod("a", unsaved=900.0),
        pod("x", queue="ml", unsaved=1.0),
        pod("b", unsaved=None),
        pod("c", unsaved=5.0),
        pod("z", priority=5, unsaved=0.0),
        pod("y", queue="ml", unsaved=0.5),
    ]
    assert uids(steer_among_equals(ordered)) == "cyabzx"


def test_where_the_queue_is_not_known_only_pods_of_one_job_are_equal() -> None:
    ordered = [
        pod("a", queue=None, job="lab/one", unsaved=9.0),
        pod("b", queue=None, job="lab/two", unsaved=0.0),
        pod("c", queue=None, job="lab/one", unsaved=3.0),
    ]
    assert uids(steer_among_equals(ordered)) == "cba"


def test_a_gang_that_loses_a_member_anyway_comes_first_among_equals() -> None:
    ordered = [pod("a", unsaved=1.0), pod("b", job="lab/broken", unsaved=100.0), pod("c", unsaved=2.0)]
    assert uids(steer_among_equals(ordered, broken=frozenset({"lab/broken"}))) == "bac"


PODS = st.lists(
    st.builds(
        pod,
        st.uuids().map(str),
        job=st.sampled_from(["lab/a", "lab/b"]),
        queue=st.sampled_from(["bio", "ml", None]),
        priority=st.integers(0, 2),
        created=st.integers(0, 59),
        unsaved=st.none() | st.floats(0, 1e6),
    ),
    max_size=12,
)


@given(PODS)
def test_steering_keeps_the_order_between_those_who_are_not_equal(these: list[Candidate]) -> None:
    ordered = sort_in_volcano_order(these)
    found = steer_among_equals(ordered)
    assert sorted(uid for uid in (one.uid for one in found)) == sorted(one.uid for one in these)
    assert [one.equivalence_key for one in found] == [one.equivalence_key for one in ordered]
    assert steer_among_equals(found) == found


def lost(choose: Callable[[list[Candidate]], list[Candidate]], *, evictions: int, fails: float, seed: int) -> float:
    """CPU-hours computed again by a group of 40 pods, of which every few minutes one must go.

    Each pod is saved in the background every hour, at a minute of its own. A checkpoint at the eviction fails in
    `fails` of all cases (a deadline, a store that is down): then what was not saved before is lost.
    """
    chance = random.Random(seed)
    saved = {f"{number}": chance.uniform(-3600.0, 0.0) for number in range(40)}
    begun = {uid: chance.randrange(60) for uid in saved}
    now = total = 0.0
    for _ in range(evictions):
        now += chance.uniform(60.0, 600.0)
        for uid, at in saved.items():
            saved[uid] = at + (now - at) // 3600.0 * 3600.0
        these = [pod(uid, job=f"lab/{uid}", created=begun[uid], unsaved=now - at) for uid, at in saved.items()]
        victim = choose(sort_in_volcano_order(these))[0].uid
        if chance.random() < fails:
            total += now - saved[victim]
        saved[victim], begun[victim] = now, chance.randrange(60)
    return total / 3600.0


def test_steering_saves_work_where_checkpoints_can_fail() -> None:
    """Measured over 2000 evictions with one failure in ten: 27 CPU-hours are computed again without, 4.3 with it."""
    without = lost(list, evictions=2000, fails=0.1, seed=1)
    steering = lost(steer_among_equals, evictions=2000, fails=0.1, seed=1)
    assert without > 20.0
    assert steering < without / 5
    assert (
        lost(steer_among_equals, evictions=200, fails=0.0, seed=1)
        == lost(list, evictions=200, fails=0.0, seed=1)
        == 0.0
    )
