"""Preemptions of a simulated Volcano, cycle by cycle: who is frozen, who is evicted, and who is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched_volcano.extender.claims import ANEW_SECONDS, FORGOTTEN_SECONDS, LONGEST_PATIENT_ROUNDS, Claims
from cedana_sched_volcano.extender.pod_states_interface import ProtectedPodState
from tests.unit.adapters.volcano.extender.extender_builders import KnownPods
from tests.unit.adapters.volcano.simulated_volcano import Preemptor, Volcano

RUNS = ProtectedPodState(may_go=False)
SAVING = ProtectedPodState(may_go=False, saving=True)
SAVED = ProtectedPodState(may_go=True, saving=True)


class World:
    """A Volcano with one cycle a second."""

    def __init__(self, *, seed: int = 0, steering: bool = False) -> None:
        self.now = 0.0
        self.holder = KnownPods()
        self.claims = Claims(lambda: self.now, steering=steering)
        self.volcano = Volcano(self.claims, self.holder, chance=random.Random(seed))

    def run(self, uid: str, node: str, standing: ProtectedPodState | None = RUNS, **fields: Any) -> None:
        self.volcano.run(uid, node, **fields)
        if standing is not None:
            self.holder.standings[uid] = standing

    def cycle(self, *preemptors: Preemptor) -> tuple[set[str], set[str]]:
        """What is evicted in the next cycle, and what is wanted gone."""
        self.now += 1.0
        return self.volcano.cycle(*preemptors), self.holder.wanted

    def save(self, *uids: str) -> None:
        for uid in uids:
            self.holder.standings[uid] = SAVED

    def until(self, done: Callable[[set[str], set[str]], bool], *preemptors: Preemptor, cycles: int = 200) -> int:
        """Cycles until `done(evicted, wanted)`, each with everything wanted saved one cycle later."""
        for number in range(1, cycles + 1):
            evicted, wanted = self.cycle(*preemptors)
            if done(evicted, wanted):
                return number
            self.save(*wanted)
        pytest.fail(f"not within {cycles} cycles")


@pytest.mark.parametrize("seed", range(8))
def test_one_victim_of_many_is_frozen_and_stays_the_same_one(seed: int) -> None:
    world = World(seed=seed)
    for node in ("one", "two"):
        for number in range(4):
            world.run(f"{node}-{number}", node, created=f"2026-05-01T12:00:0{number}Z")
    wanted: set[str] = set()
    for _ in range(20):
        evicted, now_wanted = world.cycle(Preemptor("ml", [1.0]))
        assert not evicted
        wanted |= now_wanted
    (victim,) = wanted
    assert victim.endswith("-3")  # the youngest of its node
    world.save(victim)
    assert world.cycle(Preemptor("ml", [1.0]))[0] == {victim}


@pytest.mark.parametrize("seed", range(8))
def test_a_gang_of_preemptors_gets_its_victims_at_once_and_no_more_of_them_than_it_needs(seed: int) -> None:
    world, ml = World(seed=seed), Preemptor("ml", [1.0, 1.0], least=2)
    for node in ("one", "two"):
        for number in range(2):
            world.run(f"{node}-{number}", node)
    wanted = set().union(*(world.cycle(ml)[1] for _ in range(10)))
    assert len(wanted) == 2
    first, second = sorted(wanted)
    world.save(first)
    assert world.cycle(ml)[0] == set()  # one alone would be evicted for nothing
    world.save(second)
    assert world.cycle(ml)[0] == wanted


@pytest.mark.parametrize("seed", range(8))
def test_two_preemptors_get_different_victims(seed: int) -> None:
    world = World(seed=seed)
    for uid in ("a", "b", "c"):
        world.run(uid, "one")
    both = Preemptor("ml", [1.0]), Preemptor("web", [1.0])
    wanted = world.cycle(*both)[1] | world.cycle(*both)[1]
    assert len(wanted) == 2
    world.save(*wanted)
    assert world.cycle(*both)[0] == wanted


@pytest.mark.parametrize("seed", range(8))
def test_who_is_not_protected_does_not_pay_for_a_hold(seed: int) -> None:
    """Neither on the victim's node nor on another: without us, they would have been left alone."""
    world, ml = World(seed=seed), Preemptor("ml", [1.0])
    world.run("ours", "one", priority=1)
    world.run("theirs", "one", None, priority=2)
    assert world.cycle(ml) == (set(), {"ours"})
    world.run("idle-elsewhere", "two", None)
    assert world.cycle(ml) == (set(), {"ours"})
    world.save("ours")
    assert world.cycle(ml)[0] == {"ours"}


def test_who_is_not_protected_and_comes_first_is_evicted_as_without_us() -> None:
    world, ml = World(), Preemptor("ml", [1.0])
    world.run("ours", "one", priority=2)
    world.run("theirs", "one", None, priority=1)
    assert world.cycle(ml) == ({"theirs"}, set())
    world.run("nobody", "two", None)
    assert world.cycle(Preemptor("other", [1.0])) in (({"nobody"}, set()), (set(), {"ours"}))


def test_nothing_of_ours_is_nothing_to_us() -> None:
    world = World()
    for uid in ("a", "b", "c"):
        world.run(uid, "one", None)
    assert world.cycle(Preemptor("ml", [2.0]))[0] < {"a", "b", "c"}
    assert set(world.volcano.words) == {"nothing-of-ours"}


@pytest.mark.parametrize("seed", range(4))
def test_victims_that_other_plugins_forbid_are_let_be_and_others_found(seed: int) -> None:
    """A queue below its share, say: no call tells. The preemption happens all the same, after a while."""
    world, ml = World(seed=seed), Preemptor("ml", [1.0])
    world.run("forbidden", "one", priority=1)
    world.run("possible", "one", priority=2)
    world.volcano.forbids = lambda pod: pod["UID"] == "forbidden"
    cycles = world.until(lambda evicted, _: evicted == {"possible"}, ml)
    assert cycles < 40


def test_what_becomes_possible_after_it_was_given_up_happens() -> None:
    """A queue that has got more than its share meanwhile, say; the preemptor has asked all the while."""
    world, ml = World(), Preemptor("ml", [1.0])
    world.run("ours", "one")
    world.volcano.forbids = lambda _: True
    for _ in range(300):
        world.save(*world.cycle(ml)[1])
        if "given-up" in world.volcano.words:
            world.holder.standings["ours"] = RUNS  # its release is over
    assert world.holder.standings["ours"] is RUNS
    world.volcano.forbids = lambda _: False
    assert world.until(lambda evicted, _: evicted == {"ours"}, ml, cycles=int(ANEW_SECONDS)) > 300


def test_those_before_them_who_are_forbidden_do_not_keep_ours_from_being_asked() -> None:
    world, ml = World(), Preemptor("ml", [1.0])
    world.run("theirs", "one", None, priority=1)
    world.run("ours", "one", priority=2)
    world.volcano.forbids = lambda pod: pod["UID"] == "theirs"
    assert world.until(lambda evicted, _: evicted == {"ours"}, ml) < 20


@pytest.mark.parametrize("known", [True, False])
def test_a_preemption_that_never_happens_freezes_ever_more_rarely(known: bool) -> None:
    """The other half of the gang can never be placed; without us nothing would happen, for ever."""
    world, ml = World(), Preemptor("ml", [1.0, 64.0], least=2)
    for number in range(40):
        world.run(f"pod-{number:02}", f"node-{number % 4}")
    if known:
        world.holder.room = {node: {"cpu": 0.0, "pods": 9.0} for node in world.volcano.idle}
    frozen: list[float] = []
    for _ in range(1200):
        evicted, wanted = world.cycle(ml)
        assert not evicted
        for uid in wanted:
            if world.holder.standings[uid] is RUNS:
                frozen.append(world.now)
                world.save(uid)
    assert len(set(frozen)) < 10
    assert len(frozen) < 10 or (not known and len(frozen) < 30)  # all pods of a node, once in ten minutes


@pytest.mark.parametrize("seed", range(8))
def test_what_is_free_beside_the_victims_counts_when_it_is_known(seed: int) -> None:
    world, ml = World(seed=seed), Preemptor("ml", [1.0])
    for uid in ("a", "b", "c"):
        world.run(uid, "one", cpu=0.9)
    world.volcano.idle["one"] = 0.2
    world.holder.room["one"] = {"cpu": 200.0}
    wanted = world.cycle(ml)[1]
    assert len(wanted) == 1
    world.save(*wanted)
    assert world.cycle(ml)[0] == wanted


@pytest.mark.parametrize("seed", range(8))
def test_where_it_is_not_known_the_closest_node_is_tried_after_a_few_cycles(seed: int) -> None:
    world, ml = World(seed=seed), Preemptor("ml", [1.5])
    world.run("large", "one", cpu=1.2)
    world.run("small", "two", cpu=0.3)
    world.volcano.idle["one"] = 0.5
    assert world.cycle(ml)[1] == set()
    assert world.until(lambda evicted, _: evicted == {"large"}, ml) < 10
    assert world.holder.standings["small"] is RUNS


def test_a_place_that_is_not_asked_about_any_more_is_no_claim() -> None:
    world, ml = World(), Preemptor("ml", [1.0])
    world.run("a", "one")
    assert world.cycle(ml)[1] == {"a"}
    del world.volcano.pods["a"]  # it has finished
    world.run("b", "two")
    world.cycle(ml)
    assert world.until(lambda evicted, _: evicted == {"b"}, ml) < 5


def test_the_choice_stands_when_others_would_come_first_now() -> None:
    world, ml = World(steering=True), Preemptor("ml", [1.0])
    world.run("a", "one", ProtectedPodState(may_go=False, unsaved_seconds=5.0), queue="bio")
    assert world.cycle(ml)[1] == {"a"}
    world.run(
        "b", "one", ProtectedPodState(may_go=False, unsaved_seconds=0.0), queue="bio", created="2026-05-01T13:00:00Z"
    )
    world.run("c", "one", priority=-1)
    assert world.cycle(ml)[1] == {"a"}


def test_a_pod_that_its_policy_keeps_running_is_no_victim() -> None:
    world, ml = World(), Preemptor("ml", [1.0])
    world.run("a", "one", priority=1)
    world.run("b", "two", priority=2)
    (kept,) = wanted = world.cycle(ml)[1]
    world.holder.standings[kept] = ProtectedPodState(may_go=False, stays=True)
    (other,) = {"a", "b"} - wanted
    assert world.until(lambda evicted, _: evicted == {other}, ml) < 5


def test_a_new_replica_chooses_those_that_are_being_saved() -> None:
    world, ml = World(), Preemptor("ml", [1.0])
    for number in range(5):
        world.run(f"pod-{number}", "one", created=f"2026-05-01T12:00:0{number}Z")
    world.holder.standings["pod-1"] = SAVING
    assert world.cycle(ml)[1] == {"pod-1"}


def test_those_who_ask_no_more_are_forgotten() -> None:
    world = World()
    world.run("a", "one")
    for number in range(1000):
        world.now += 1.0
        world.volcano.cycle(Preemptor(f"ml-{number}", [1.0]))
    assert world.claims.count_active_preemptors() < 2 * FORGOTTEN_SECONDS
    world.now += 2 * FORGOTTEN_SECONDS
    assert world.claims.count_active_preemptors() == 0, "also where nobody asks any more"


@given(
    seed=st.integers(0, 2**16),
    cpus=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=3),
    pods=st.lists(
        st.tuples(st.sampled_from(["one", "two"]), st.sampled_from([0.5, 1.0]), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    forbidden=st.sets(st.integers(0, 7), max_size=3),
    idle=st.sampled_from([0.0, 0.3]),
)
def test_whatever_happens_nothing_unsaved_goes_and_what_is_possible_happens(
    seed: int,
    cpus: list[float],
    pods: list[tuple[str, float, int, bool]],
    forbidden: set[int],
    idle: float,
) -> None:
    """A protected pod is evicted only when it may go; and what Volcano can do is delayed, and never prevented."""
    world = World(seed=seed)
    for number, (node, cpu, priority, protected) in enumerate(pods):
        world.run(f"{number}", node, RUNS if protected else None, cpu=cpu, priority=priority)
    world.volcano.idle = dict.fromkeys(world.volcano.idle, idle)
    world.volcano.forbids = lambda pod: int(pod["UID"]) in forbidden
    ml = Preemptor("ml", cpus, least=1)
    possible = any(
        idle + sum(cpu for number, (at, cpu, _, _) in enumerate(pods) if at == node and number not in forbidden)
        >= min(cpus)
        for node in world.volcano.idle
    )
    for _ in range(40 * LONGEST_PATIENT_ROUNDS if possible else LONGEST_PATIENT_ROUNDS):
        evicted, wanted = world.cycle(ml)
        assert all(uid not in world.holder.standings or world.holder.standings[uid].may_go for uid in evicted)
        if evicted or (possible and idle >= min(cpus)):
            return
        world.save(*wanted)
    assert not possible


@pytest.mark.parametrize("seed", range(8))
def test_what_is_free_is_free_for_one_member_of_a_gang_only(seed: int) -> None:
    world, ml = World(seed=seed), Preemptor("ml", [4.0, 4.0], least=2)
    for number in range(8):
        world.run(f"pod-{number}", "one", cpu=1.0)
    world.volcano.idle["one"] = 2.0
    world.holder.room["one"] = {"cpu": 2000.0}
    assert world.until(lambda evicted, _: len(evicted) == 6, ml) < 5
