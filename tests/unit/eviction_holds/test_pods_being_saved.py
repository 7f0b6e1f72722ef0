"""Whether pods are being saved: the same as a look at every hold says, and without one."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.eviction_holds.pods_being_saved import PodsBeingSaved
from cedana_sched.eviction_holds.preemption_index import PreemptionIndex
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.own_kinds.cached_hold import HeldObject, HoldSpec, HoldStatus, PreemptionHold
from cedana_sched.model.records import HoldStep

START = datetime(2026, 5, 1, 12, tzinfo=UTC)
BEGAN_BEFORE = timedelta(seconds=0.7)
TAKES = timedelta(seconds=5)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def hold(
    name: str,
    created: float,
    deadline: float | None,
    step: HoldStep = HoldStep.HOLDING,
    released: float | None = None,
    *,
    of_object: bool = False,
) -> PreemptionHold:
    status = HoldStatus(
        step,
        deadline=None if deadline is None else at(deadline).isoformat(),
        release_time=None if released is None else at(released).isoformat(),
    )
    held = HeldObject("job") if of_object else None
    return PreemptionHold(
        Metadata(name=name), HoldSpec(held_object_ref=held, uid=name, creation_time=at(created).isoformat()), status
    )


def scanned(holds: dict[str, PreemptionHold], now: datetime) -> bool:
    """What is to be answered, by a look at every hold."""

    def counts(one: PreemptionHold) -> bool:
        if one.spec.held_object_ref is not None or now - datetime.fromisoformat(one.spec.creation_time) <= BEGAN_BEFORE:
            return False
        if one.status.step is HoldStep.HOLDING:
            return one.status.deadline is None or now < datetime.fromisoformat(one.status.deadline)
        released = one.status.release_time
        return released is None or now - datetime.fromisoformat(released) < TAKES

    return any(map(counts, holds.values()))


SECONDS = st.integers(0, 20)
CHANGES = st.lists(
    st.tuples(
        SECONDS,
        st.sampled_from("abcd"),
        st.none()
        | st.tuples(SECONDS, SECONDS | st.none(), st.sampled_from(HoldStep), SECONDS | st.none(), st.booleans()),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(CHANGES)
def test_it_answers_as_a_look_at_every_hold_would(
    changes: list[tuple[int, str, tuple[int, int | None, HoldStep, int | None, bool] | None]],
) -> None:
    known, holds, now = PreemptionIndex(), dict[str, PreemptionHold](), 0
    for later, name, fields in changes:
        now += later
        before = holds.pop(name, None)
        after = None
        if fields is not None:
            created, deadline, step, released, of_object = fields
            after = holds[name] = hold(name, created, deadline, step, released, of_object=of_object)
        known.on_hold_change(before, after)
        assert known.is_saving_pods(at(now), BEGAN_BEFORE) == scanned(holds, at(now))


def test_pods_were_saved_until_a_while_after_the_last_release() -> None:
    known, within = PreemptionIndex(), timedelta(seconds=30)
    assert not known.was_saving_pods("lab", START, within)
    for name, released in (("a", 40), ("b", 10)):
        held, over = hold(name, 0, 100), hold(name, 0, 100, HoldStep.RELEASED, released)
        known.on_hold_change(None, _in(held, "lab", 0))
        known.on_hold_change(_in(held, "lab", 0), _in(over, "lab", 0))
    moments = (1, 20, 44, 46, 74, 76)
    assert [known.was_saving_pods("lab", at(now), within) for now in moments] == [True] * 5 + [False]


def test_pods_of_another_namespace_are_saved_apart() -> None:
    known, within = PreemptionIndex(), timedelta(seconds=30)
    held = _in(hold("a", 0, 100), "lab", 0)
    known.on_hold_change(None, held)
    known.on_hold_change(None, _in(hold("a", 0, 100), "bio", 0))
    known.on_hold_change(held, None)
    assert [known.was_saving_pods(name, at(1), within) for name in ("lab", "bio", "other")] == [False, True, False]


@pytest.mark.parametrize("age", [0.0, 5.0], ids=["all young", "all old"])
def test_its_work_does_not_grow_with_the_holds(age: float) -> None:
    def calls_of(number: int) -> int:
        known, calls = PreemptionIndex(), 0
        for index in range(number):
            known.on_hold_change(None, hold(f"h{index}", created=-age, deadline=600))
        known.is_saving_pods(START, BEGAN_BEFORE)

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            del frame, event, argument
            calls += 1

        sys.setprofile(count)
        try:
            known.is_saving_pods(START, BEGAN_BEFORE)
        finally:
            sys.setprofile(None)
        return calls

    assert calls_of(1000) <= calls_of(10) + 5


def _in(one: PreemptionHold, namespace: str, created: float) -> PreemptionHold:
    metadata = Metadata(one.metadata.name, namespace, creation_timestamp=at(created).isoformat())
    return PreemptionHold(metadata, one.spec, one.status)


def test_a_hold_of_another_namespace_takes_no_others_place() -> None:
    known, real = PreemptionIndex(), _in(hold("one", 0, 600), "lab", 0)
    known.on_hold_change(None, real)
    forged = _in(hold("one", 0, 1), "tenant-b", 0)
    known.on_hold_change(None, forged)
    known.on_hold_change(forged, None)
    assert known.is_saving_pods(at(5), BEGAN_BEFORE)


def test_nothing_is_saved_for_ever() -> None:
    known = PreemptionIndex()
    for name, step, deadline in (
        ("a", HoldStep.HOLDING, 1e9),
        ("b", HoldStep.HOLDING, None),
        ("c", HoldStep.RELEASING, 9),
    ):
        known.on_hold_change(None, _in(hold(name, 0, deadline, step), "lab", 0))
    assert known.is_saving_pods(at(86_400), BEGAN_BEFORE)
    assert not known.is_saving_pods(at(86_400 + 61), BEGAN_BEFORE)


def test_holds_that_nobody_asks_about_do_not_pile_up() -> None:
    saved = PodsBeingSaved()
    kept = hold("kept", 0, 1e6)
    saved.on_hold_change(None, kept)
    for number in range(1_000):
        one = hold(f"h{number}", number, 1e6)
        saved.on_hold_change(None, one)
        saved.on_hold_change(one, None)
    assert sys.getsizeof(saved._ending) + sys.getsizeof(saved._begun) < 4_000
    assert saved.oldest_begin(at(5)) == START
