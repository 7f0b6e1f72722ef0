"""A machine's clock that is set passes no deadline, and lengthens no pause."""

from __future__ import annotations

import asyncio
import time

import pytest

from cedana_sched.coordinator.clock import FOLLOWS, LONGEST_SLEEP_SECONDS, SteadyTime, SystemClock

BEGAN = 1_800_000_000.0


class Machine:
    """Seconds pass only when it sleeps."""

    def __init__(self) -> None:
        self.elapsed = 5000.0
        self.off = 0.0

    def time(self) -> float:
        return BEGAN + self.elapsed + self.off

    def look(self) -> float:
        return self.elapsed


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine, turn = Machine(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        machine.elapsed += seconds
        await turn(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return machine


@pytest.mark.parametrize("by", [-3600.0, 3600.0])
def test_time_that_is_steady_follows_a_clock_that_is_set_slowly(machine: Machine, by: float) -> None:
    steady = SteadyTime(machine.time, machine.look)
    machine.elapsed += 600
    assert steady.seconds() == pytest.approx(machine.time(), abs=1e-3)
    machine.off = by
    last = steady.seconds()
    assert last == pytest.approx(BEGAN + machine.elapsed, abs=1e-3), "a deadline would pass, or never come"
    for _ in range(60):
        machine.elapsed += 10
        assert 10 * (1 - FOLLOWS) <= steady.seconds() - last + 1e-3 <= 10 * (1 + FOLLOWS) + 2e-3
        last = steady.seconds()
    machine.elapsed += abs(by) / FOLLOWS
    assert steady.seconds() == pytest.approx(machine.time(), abs=1e-3)


def test_time_of_an_engine_is_steady(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", machine.time)
    engine = SystemClock()
    before = engine.now()
    machine.off = 3600.0
    assert engine.now() - before < 60


async def test_pause_is_no_longer_because_the_clock_is_set_back(machine: Machine) -> None:
    system = SystemClock(machine.time, machine.look)
    began = machine.elapsed
    waiting = asyncio.create_task(system.wait_until(system.now() + 100.0))
    await asyncio.sleep(0)
    machine.off = -3600.0
    await waiting
    assert machine.elapsed - began == pytest.approx(100.0, abs=1e-3)


async def test_deadline_that_comes_nearer_is_not_slept_past(machine: Machine) -> None:
    system = SystemClock(machine.time, machine.look)
    began = machine.elapsed
    waiting = asyncio.create_task(system.wait_until(system.now() + 600.0))
    await asyncio.sleep(0)
    machine.off = 3600.0
    await waiting
    assert machine.elapsed - began <= LONGEST_SLEEP_SECONDS
