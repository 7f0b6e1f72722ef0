"""The rate of a node: the median of its namespaces' rates, so that no namespace makes others' pods slow or fast."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cedana_sched_kubernetes.save_planning import OVERHEAD_SECONDS, PodToSave, plan_saves
from cedana_sched_kubernetes.save_rates import (
    ASSUMED_BYTES_PER_SECOND,
    LARGEST_DEVIATION,
    MeasuredSave,
    SaveRates,
)

NOW = 1_800_000_000.0
GIB = 1 << 30
MB = 1_000_000
RATE = st.floats(1, 1e12)
RATES = st.dictionaries(st.sampled_from("bcdefg"), RATE, min_size=1)
SAVE = st.builds(
    lambda began_at, seconds, moved: MeasuredSave(began_at, began_at + seconds, moved),
    began_at=st.floats(0, 100),
    seconds=st.floats(0.01, 100),
    moved=st.integers(1, 1 << 50),
)
SAVES = st.lists(SAVE, min_size=1, max_size=5)


def save(ago: float, seconds: float, moved: int = GIB) -> MeasuredSave:
    return MeasuredSave(NOW - ago - seconds, NOW - ago, moved)


def rate(*saves: MeasuredSave) -> float:
    return SaveRates.from_saves({"bio": saves}).rate_for("bio")


def test_a_node_without_a_measurement_has_the_assumed_rate() -> None:
    assert SaveRates().rate_for("bio") == ASSUMED_BYTES_PER_SECOND
    assert SaveRates.from_saves({"bio": []}).rate_for("bio") == ASSUMED_BYTES_PER_SECOND


def test_a_namespace_has_the_median_of_its_rates() -> None:
    """Each save has an overhead, and at most half of a short one is that."""
    fast, medium, slow, stalled = save(5, 3), save(20, 5), save(40, 9), save(100, 1_000)
    assert rate(fast) == GIB / 2
    assert rate(fast, medium, slow) == GIB / 4
    assert rate(fast, medium, slow, stalled) == pytest.approx((GIB / 4 + GIB / 8) / 2)
    assert rate(save(5, 1)) == GIB / 0.5


def test_saves_that_overlap_share_the_rate_of_their_node() -> None:
    long, inner, later, alone = save(5, 20), save(9, 4), save(3, 4), save(100, 11)
    for order in ([long, inner, later], [later, inner, long]):
        assert rate(*order) == pytest.approx(3 * GIB / 21)
        assert rate(*order, alone) == pytest.approx((3 * GIB / 21 + GIB / 10) / 2)


def test_namespaces_whose_saves_overlap_share_the_rate_of_their_node() -> None:
    saves = {name: [save(5, 21)] for name in ("bio", "lab", "ml")}
    rates = SaveRates.from_saves(saves)
    assert [rates.rate_for(name) for name in (*saves, "other")] == pytest.approx([3 * GIB / 20] * 4)


def test_only_what_is_moved_at_the_same_time_counts() -> None:
    rates = SaveRates.from_saves({"bio": [save(0, 11)], "lab": [save(10, 10, 10 * MB)]}).by_namespace
    assert rates == {"bio": pytest.approx((GIB + MB) / 10), "lab": pytest.approx(20 * MB / 9)}


@given(own=SAVES, others=st.dictionaries(st.sampled_from("cdef"), SAVES), spoiling=SAVES)
def test_no_namespace_lowers_anothers_rate_or_more_than_doubles_it(
    own: list[MeasuredSave], others: dict[str, list[MeasuredSave]], spoiling: list[MeasuredSave]
) -> None:
    without = SaveRates.from_saves({**others, "b": own}).by_namespace["b"]
    spoiled = SaveRates.from_saves({**others, "b": own, "a": spoiling}).by_namespace["b"]
    assert without * (1 - 1e-9) <= spoiled <= 2 * without * (1 + 1e-9)


@given(others=RATES, spoiled=RATE, of=st.sampled_from("bcdefg"))
@example(others={"b": 1.0}, spoiled=1e12, of="b")
@example(others={"b": 1.0, "c": 2.0}, spoiled=1e12, of="d")
@example(others={"b": 1.0, "c": 2.0, "d": 3.0}, spoiled=0.5, of="e")
def test_whatever_a_namespace_measures_others_are_planned_within_the_range_of_the_others(
    others: dict[str, float], spoiled: float, of: str
) -> None:
    least, most = min(others.values()), max(others.values())
    if len(others) == 1 and of not in others:  # of two rates, neither is another one's witness
        least, most = min(least, ASSUMED_BYTES_PER_SECOND), max(most, ASSUMED_BYTES_PER_SECOND)
    assert least <= SaveRates({**others, "a": spoiled}).rate_for(of) <= most


@given(spoiled=RATE)
def test_the_only_namespace_that_has_measured_moves_the_rate_of_others_within_bounds(spoiled: float) -> None:
    rates = SaveRates({"a": spoiled})
    assert rates.rate_for("a") == spoiled
    deviation = rates.rate_for("b") / ASSUMED_BYTES_PER_SECOND
    assert 1 / LARGEST_DEVIATION <= deviation <= LARGEST_DEVIATION


@given(others=RATES, own=RATE)
def test_a_namespace_that_is_slower_than_the_node_has_its_own_rate(others: dict[str, float], own: float) -> None:
    rates = SaveRates({**others, "a": own})
    assert rates.rate_for("a") <= own
    if own <= min(others.values()):
        assert rates.rate_for("a") == own


def test_six_pods_fit_into_a_notice_by_their_increments_only() -> None:
    """The figures of `tests/e2e/product/test_spot_plans.py`: six pods of 28 MB, 14 Mbit/s, a notice of 30 s."""
    seconds = 28 * MB / (14e6 / 8) - 0.3
    rates = SaveRates.from_saves({"bio": [save(20 * number, seconds, 28 * MB) for number in range(6)]})
    bytes_per_second = rates.rate_for("bio")
    assert bytes_per_second == pytest.approx(28 * MB / (seconds - OVERHEAD_SECONDS))
    for moved, planned in ((28 * MB, 1), (4 * MB, 6)):
        pods = [PodToSave(f"md-{number}", moved, 10, bytes_per_second) for number in range(6)]
        plan = plan_saves(pods, 23)
        assert len(plan.saved) == planned
