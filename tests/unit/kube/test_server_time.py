"""Clocks apart: who compares times of another machine does so by the API server's clock."""

from __future__ import annotations

from datetime import datetime
from email.utils import formatdate

import pytest

from cedana_sched.kube.server_time import ServerTime
from cedana_sched.model.objects.eviction_mark import asked_now

BEGAN = 1_800_000_000.4


class Machine:
    """One clock, so many seconds off, and what it makes of the API server's answers."""

    def __init__(self, off: float) -> None:
        self.true = BEGAN
        self.off = off
        self.time = ServerTime(lambda: self.true + self.off)

    def ask(self, seconds: float = 0.2) -> None:
        """One request, answered half way."""
        sent = self.time.sent()
        self.true += seconds / 2
        date = formatdate(self.true, usegmt=True)
        self.true += seconds / 2
        self.time.answered(date, sent)

    @property
    def error(self) -> float:
        return self.time.now().timestamp() - self.true


@pytest.mark.parametrize("off", [-3600.0, -30.0, -13.0, 13.0, 30.0, 3600.0])
def test_a_clock_that_is_off_is_corrected(off: float) -> None:
    machine = Machine(off)
    machine.ask()
    assert abs(machine.error) < 1.3
    for _ in range(10):
        machine.true += 0.37
        machine.ask(0.01)
    assert abs(machine.error) < 0.5


@pytest.mark.parametrize("off", [-0.9, 0.0, 0.9])
def test_a_clock_that_may_be_right_is_left_alone(off: float) -> None:
    machine = Machine(off)
    for _ in range(20):
        machine.true += 0.37
        machine.ask(0.01)
    assert machine.time.offset_seconds == 0.0


def test_a_clock_that_is_set_is_corrected_anew() -> None:
    machine = Machine(30.0)
    machine.ask()
    machine.off = 0.0
    machine.true += 5
    machine.ask()
    assert machine.time.offset_seconds == 0.0


def test_what_cannot_be_read_says_nothing() -> None:
    machine = Machine(0.0)
    for date in (None, "", "yesterday"):
        machine.time.answered(date, machine.time.sent())
    assert machine.time.offset_seconds == 0.0


@pytest.mark.parametrize("apart", [-30.0, -13.0, 13.0, 30.0])
def test_a_mark_is_fresh_by_whichever_clock(apart: float) -> None:
    """A webhook writes it, the coordinator reads it, and takes the eviction up."""
    webhook, coordinator = Machine(0.0), Machine(apart)
    for machine in (webhook, coordinator):
        machine.ask()
    mark = asked_now(None, "volcano-scheduler", webhook.time.now())
    assert mark is not None
    assert mark.is_fresh(coordinator.time.now()), "the preemption is never taken up, and its victim evicted unsaved"
    own = datetime.fromtimestamp(coordinator.true + apart, tz=coordinator.time.now().tzinfo)
    assert apart < 12 or not mark.is_fresh(own), "by its own clock it would not be: this is what is mended"
