"""Clocks apart: who compares times of another machine does so by the API server's clock."""

from __future__ import annotations

from datetime import datetime
from email.utils import formatdate

import pytest
from aiohttp import web

from cedana_sched.kube import client
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.resources import NODES
from cedana_sched.kube.server_time import ServerTime
from cedana_sched.model.objects.eviction_mark import refreshed_mark
from tests.unit.kube.served_api import served

BEGAN = 1_800_000_000.4


class Machine:
    """One clock, so many seconds off, and what it makes of the API server's answers."""

    def __init__(self, off: float) -> None:
        self.true = BEGAN
        self.off = off
        self.uncounted = 0.0
        self.time = ServerTime(lambda: self.true + self.off, lambda: self.true - self.uncounted)

    def stood_still(self, seconds: float) -> None:
        self.true += seconds
        self.uncounted += seconds
        self.off -= seconds

    def ask(self, seconds: float = 0.2, ahead: float = 0.0) -> None:
        """One request, answered half way, by a server whose clock is so many seconds ahead."""
        sent = self.time.request_start_time()
        self.true += seconds / 2
        date = formatdate(self.true + ahead, usegmt=True)
        self.true += seconds / 2
        self.time.record_response(date, sent)

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
    assert machine.error == pytest.approx(off, abs=1e-3)


@pytest.mark.parametrize("off", [-3600.0, -30.0, 30.0, 3600.0])
def test_a_clock_that_is_set_right_takes_no_time_along(off: float) -> None:
    """Deadlines that are far would pass, and holds end, in the seconds or minutes until the next answer."""
    machine = Machine(off)
    machine.ask()
    machine.off = 0.0
    machine.true += 5
    assert abs(machine.error) < 1.3
    machine.ask()
    assert machine.error == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
def test_a_clock_that_is_set_wrong_takes_no_time_along(off: float) -> None:
    machine = Machine(0.0)
    machine.ask()
    machine.off = off
    for _ in range(5):
        machine.true += 5
        assert abs(machine.error) < 1.3
        machine.ask()
    assert abs(machine.error) < 1.3


def test_machine_that_stood_still_unnoticed_follows_its_clock_once_that_is_set() -> None:
    """As a virtual machine does: the seconds are counted nowhere."""
    machine = Machine(0.0)
    machine.ask()
    machine.stood_still(600.0)
    machine.ask()
    assert machine.error == pytest.approx(-600.0, abs=1e-3), "one answer says so, and our own clock does not"
    machine.off = 0.0
    machine.ask()
    assert machine.error == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("ahead", [-365 * 86_400.0, -60.0, 60.0, 365 * 86_400.0])
def test_one_answer_does_not_move_a_time_that_is_known(ahead: float) -> None:
    machine = Machine(30.0)
    machine.ask()
    for _ in range(5):
        for seconds in (ahead, ahead, 0.0):
            machine.ask(ahead=seconds)
            assert abs(machine.error) < 1.3


def test_answers_that_differ_confirm_nothing() -> None:
    machine = Machine(0.0)
    machine.ask()
    for number in range(1, 10):
        machine.ask(ahead=number * 1000.0)
        assert abs(machine.error) < 1.3


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_server_whose_clock_was_set_is_followed_when_that_is_confirmed(ahead: float) -> None:
    machine = Machine(0.0)
    machine.ask()
    for _ in range(3):
        machine.ask(ahead=ahead)
    assert abs(machine.error - ahead) < 1.3


def test_server_that_differs_a_little_is_followed_at_once() -> None:
    machine = Machine(0.0)
    machine.ask()
    machine.ask(ahead=5.0)
    assert abs(machine.error - 5.0) < 1.3


@pytest.mark.parametrize(("headers", "error"), [({}, 0.0), ({"Audit-Id": "1"}, 3600.0)])
async def test_only_the_api_server_itself_says_what_time_it_is(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], error: float
) -> None:
    """A load balancer before it answers as well, while no API server does, and by a clock of its own."""
    machine = Machine(0.0)
    monkeypatch.setattr(client, "SERVER_TIME", machine.time)
    date = formatdate(machine.true + 3600.0, usegmt=True)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, status=503, headers={"Date": date, **headers})

    async with served({"/api/v1/nodes/n1": answer}) as api:
        with pytest.raises(ApiError):
            await api.get(NODES, "n1", into=dict)
    assert abs(machine.error - error) < 1.3


def test_what_cannot_be_read_says_nothing() -> None:
    machine = Machine(0.0)
    for date in (None, "", "yesterday"):
        machine.time.record_response(date, machine.time.request_start_time())
    assert machine.error == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("apart", [-30.0, -13.0, 13.0, 30.0])
def test_a_mark_is_fresh_by_whichever_clock(apart: float) -> None:
    """A webhook writes it, the coordinator reads it, and takes the eviction up."""
    webhook, coordinator = Machine(0.0), Machine(apart)
    for machine in (webhook, coordinator):
        machine.ask()
    mark = refreshed_mark(None, "volcano-scheduler", webhook.time.now())
    assert mark is not None
    assert mark.is_fresh(coordinator.time.now()), "the preemption is never taken up, and its victim evicted unsaved"
    own = datetime.fromtimestamp(coordinator.true + apart, tz=coordinator.time.now().tzinfo)
    assert apart < 12 or not mark.is_fresh(own), "by its own clock it would not be: this is what is mended"
