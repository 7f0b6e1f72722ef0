"""Ten thousand random schedules, and the same simulation under hypothesis, which shortens what it finds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.coordinator.core.simulation import Simulation, play, tell_story

SCHEDULES = 10_000
PARTS = 10
ALWAYS = 4


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=() if part < ALWAYS else pytest.mark.exhaustive) for part in range(PARTS)],  # alike
)
def test_invariants_hold_in_every_random_schedule(part: int) -> None:
    """A failure names its seed and tells its story; `play(seed)` repeats it."""
    restored = again = outran = waited = 0
    for seed in range(part, SCHEDULES, PARTS):
        world = play(seed).world
        restored += world.restarts
        again += world.restarts - world.returns[0]
        outran += world.outran
        waited += world.waited
    assert restored > SCHEDULES // PARTS // 10, "the schedules hardly ever come to a restore: they prove little"
    assert again > SCHEDULES // PARTS // 100, "hardly any pod begins again and is restored"
    assert waited > SCHEDULES // PARTS // 100, "hardly any waits for the end of a predecessor"
    assert outran, "none comes back after its node has failed it"


def test_the_same_seed_plays_the_same_story() -> None:
    first, second = play(4711), play(4711)

    assert tell_story(first) == tell_story(second)


def test_schedules_visit_every_verdict_and_every_kind_of_return() -> None:
    """What the ten thousand do not visit, they do not test."""
    seen: Counter[str] = Counter()
    for seed in range(300):
        simulation = play(seed)
        for held in simulation.scheduler.held.values():
            assert held.released is not None
            seen.update(map(str, held.released.verdicts.values()))
        seen.update(type(what).__name__ for _, kind, what in simulation.story if kind in {"event", "order"})

    wanted = {
        "Committed",
        "Evict",
        "KeepRunning",
        "NotNeeded",
        "RestoreSucceeded",
        "RestoreFailed",
        "StageFailed",
        "WorkloadFailed",
    }
    wanted |= {"StartedCold", "Thawed", "Aborted", "OrderLost", "NodeLost", "ReleaseFailed"}
    assert wanted <= set(seen)


class Schedules(RuleBasedStateMachine):
    """Hypothesis chooses what happens next; the details are the simulation's own dice."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = Simulation(seed=0)

    @rule(seed=st.integers(0, 2**16))
    def roll_other_dice(self, seed: int) -> None:
        self.simulation.rng.seed(seed)

    @rule()
    def start(self) -> None:
        self.simulation.scheduler.start()

    @rule()
    def scheduler_acts(self) -> None:
        self.simulation.scheduler.act(self.simulation.now)

    @rule(messages=st.integers(1, 6))
    def deliver(self, messages: int) -> None:
        for _ in range(messages):
            self.simulation.deliver()

    @rule()
    def deliver_release(self) -> None:
        self.simulation.deliver_releases()

    @rule(seconds=st.floats(0.01, 20))
    def time_passes(self, seconds: float) -> None:
        self.simulation.pass_time(seconds)

    @rule()
    def coordinator_restarts(self) -> None:
        self.simulation.restart_coordinator()

    @rule()
    def agent_restarts(self) -> None:
        self.simulation.restart_agent(self.simulation.nodes[0])

    @rule()
    def sandbox_dies(self) -> None:
        self.simulation.kill_sandbox()

    @rule()
    def store_changes(self) -> None:
        self.simulation.world.store_is_down = not self.simulation.world.store_is_down

    @invariant()
    def everything_holds(self) -> None:
        self.simulation.check()

    def teardown(self) -> None:
        self.simulation.rest()


Schedules.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSchedules = Schedules.TestCase
