"""Which pods of a node that ends are saved: never over the deadline, all that fit, and of others the most work."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched_kubernetes.save_planning import OVERHEAD_SECONDS, PodToSave, SavePlan, plan_saves, seconds_to_save

MB = 1_000_000
PODS = st.lists(
    st.builds(
        PodToSave,
        uid=st.uuids().map(str),
        bytes_to_move=st.integers(0, 2_000 * MB),
        work=st.floats(0, 1e6).map(lambda work: round(work, 3)) | st.sampled_from([0.0, 1.0, 100.0]),
        bytes_per_second=st.floats(1 * MB, 1_000 * MB) | st.just(200.0 * MB),
    ),
    max_size=7,
    unique_by=lambda pod: pod.uid,
)


def planned_seconds(pod: PodToSave) -> float:
    """Durations are planned in milliseconds, rounded up."""
    return math.ceil(seconds_to_save(pod) * 1_000) / 1_000


def seconds_of(pods: list[PodToSave], plan: SavePlan) -> float:
    return math.fsum(seconds_to_save(pod) for pod in pods if pod.uid in plan.saved)


def work_of(pods: list[PodToSave], plan: SavePlan) -> float:
    return math.fsum(pod.work for pod in pods if pod.uid in plan.saved)


@given(pods=PODS, left=st.floats(-10, 200))
def test_no_plan_exceeds_the_deadline(pods: list[PodToSave], left: float) -> None:
    plan = plan_saves(pods, left)
    assert not plan.saved or seconds_of(pods, plan) <= left
    assert sorted([*plan.saved, *plan.left_out]) == sorted(pod.uid for pod in pods), "each is planned or explained"


@given(pods=PODS)
def test_everything_fits_if_it_fits(pods: list[PodToSave]) -> None:
    needed = math.fsum(planned_seconds(pod) for pod in pods)
    for left in (needed + 0.001, None):
        plan = plan_saves(pods, left)
        assert len(plan.saved) == len(pods)
        work = {pod.uid: pod.work / planned_seconds(pod) for pod in pods}
        assert list(map(work.get, plan.saved)) == sorted(work.values(), reverse=True), "the most work first"


@given(pods=PODS, left=st.floats(0, 200))
def test_at_least_half_of_the_work_that_any_plan_saves(pods: list[PodToSave], left: float) -> None:
    plan = plan_saves(pods, left)
    most = max(
        math.fsum(pod.work for pod in some)
        for count in range(len(pods) + 1)
        for some in itertools.combinations(pods, count)
        if math.fsum(planned_seconds(pod) for pod in some) <= left
    )
    assert work_of(pods, plan) >= most / 2 - 1e-6


@given(pods=PODS, left=st.none() | st.floats(0, 200), order=st.randoms())
def test_the_order_of_the_pods_does_not_matter(pods: list[PodToSave], left: float | None, order: object) -> None:
    shuffled = list(pods)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan_saves(shuffled, left) == plan_saves(pods, left)


def test_a_pod_that_does_not_fit_is_explained() -> None:
    large, slow = PodToSave("large", 8_400 * MB, 1e6, 210 * MB), PodToSave("slow", 210 * MB, 1e6, 7 * MB)
    plan = plan_saves([large, PodToSave("small", 210 * MB, 1, 210 * MB), slow], 22.5)
    assert plan.saved == ("small",)
    assert plan.left_out == {
        "large": "needs 41 s at 210 MB/s, 22 s are left",
        "slow": "needs 31 s at 7 MB/s, 22 s are left",
    }


def test_a_pod_that_others_displace_is_explained() -> None:
    pods = [PodToSave(name, 900 * MB, work, 100 * MB) for name, work in (("a", 30), ("b", 20), ("c", 10))]
    plan = plan_saves(pods, 25)
    assert plan.saved == ("a", "b")
    assert plan.left_out == {
        "c": "needs 10 s at 100 MB/s, 25 s are left, 20 s of them for pods with more work per second"
    }


@pytest.mark.parametrize(
    ("sizes", "left", "saved"),
    [
        ({"dense": (0, 5), "large": (9, 40)}, 10, ("large",)),  # greedy alone would keep the dense one
        ({"a": (3, 40), "b": (5, 54), "c": (5, 54)}, 12, ("b", "c")),  # one for one
        ({"a": (1, 10), "b": (1, 10), "c": (9, 48)}, 10, ("c",)),  # one for two
    ],
)
def test_exchanges(sizes: dict[str, tuple[int, float]], left: float, saved: tuple[str, ...]) -> None:
    """Sizes are seconds of transfer, and work."""
    pods = [PodToSave(name, seconds * MB, work, MB) for name, (seconds, work) in sizes.items()]
    assert OVERHEAD_SECONDS == 1
    assert plan_saves(pods, left).saved == saved


def test_hundreds_of_pods_are_planned_at_once() -> None:
    pods = [PodToSave(f"p{number:03}", number % 97 * 10 * MB, number * 31 % 113, 200 * MB) for number in range(250)]
    plan = plan_saves(pods, 120)
    assert 110 < seconds_of(pods, plan) <= 120
