"""No namespace displaces what a smaller one has in a bounded map."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.coordinator.core import restore_steps
from cedana_sched.coordinator.core.namespace_shares import Displaced, NamespaceShares
from tests.unit.coordinator.core.test_losses import lost


def test_the_largest_namespace_loses_its_oldest_entry() -> None:
    shares: NamespaceShares[int] = NamespaceShares(3)
    assert shares.put("small", "s1", 1) is None
    assert [shares.put("large", f"l{number}", number) for number in range(2)] == [None, None]
    assert shares.put("large", "l2", 2) == Displaced("large", "l0", 0)
    assert shares.put("other", "o1", 1) == Displaced("large", "l1", 1)
    assert (shares.get("small", "s1"), shares.get("large", "l2"), shares.get("large", "l0")) == (1, 2, None)


def test_a_value_that_is_replaced_displaces_nothing_and_stays_the_oldest() -> None:
    shares: NamespaceShares[int] = NamespaceShares(2)
    shares.put("bio", "a", 1)
    shares.put("bio", "b", 2)
    assert shares.put("bio", "a", 3) is None
    assert shares.put("bio", "c", 4) == Displaced("bio", "a", 3)


STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from("abcd"), st.integers(0, 9)), max_size=60)


@given(most=st.integers(1, 8), steps=STEPS)
def test_it_is_a_map_that_takes_from_the_largest(most: int, steps: list[tuple[bool, str, int]]) -> None:
    shares: NamespaceShares[int] = NamespaceShares(most)
    model: dict[tuple[str, str], int] = {}
    for number, (is_put, namespace, key) in enumerate(steps):
        uid = f"u{key}"
        if not is_put:
            shares.drop(namespace, uid)
            model.pop((namespace, uid), None)
            continue
        displaced = shares.put(namespace, uid, number)
        model[namespace, uid] = number
        sizes = Counter(of for of, _ in model)
        assert (displaced is not None) == (len(model) > most)
        if displaced is not None:
            assert sizes[displaced.namespace] == max(sizes.values())
            oldest = next(of for of in model if of[0] == displaced.namespace)
            assert (displaced.namespace, displaced.uid) == oldest
            assert model.pop(oldest) == displaced.value
    assert len(shares) == len(model)
    assert all(shares.get(*key) == value and shares.has(*key) for key, value in model.items())


def test_restores_that_are_retained_for_the_next_one_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_steps, "MOST_REMEMBERED", 0)
    told = lost().after(2 * 3600)
    assert "restore.w1" not in told.core.registry.restores
    assert "restore.w1" not in told.saved
