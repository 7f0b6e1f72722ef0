"""A chaos run's faults come from its seed alone."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.product.chaos import faults
from tests.e2e.product.chaos.plan import KINDS, draw


def test_same_seed_gives_same_plan() -> None:
    assert draw(7, 10) == draw(7, 10)
    assert draw(7, 10) != draw(8, 10)


@pytest.mark.parametrize("seed", range(20))
def test_every_fault_is_over_before_the_run_is(seed: int) -> None:
    plan = draw(seed, 2)

    assert len(plan) >= 5
    assert plan == sorted(plan, key=lambda fault: fault.at)
    assert all(fault.at + fault.seconds < 120 for fault in plan)


@pytest.mark.parametrize("seed", range(20))
def test_ten_minutes_have_every_kind(seed: int) -> None:
    counts = Counter(fault.kind for fault in draw(seed, 10))

    assert set(counts) == set(KINDS)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_every_kind_can_be_brought_about() -> None:
    assert set(faults.KINDS) == set(KINDS)
