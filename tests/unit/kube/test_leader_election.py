"""One leader at a time, whatever becomes of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

import pytest

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.lease import LeaderElection, LeadershipLostError, LeaseTiming
from cedana_sched.testing import FakeApi

_TIMING = LeaseTiming(duration=1.5, renew_deadline=0.7, renew_every=0.05)
"""All candidates share one loop: what keeps it on a busy machine is to be shorter than their difference."""
_PATIENT = LeaseTiming(duration=120, renew_deadline=60, renew_every=0.05)
"""For one candidate, which a busy machine must not depose."""


class _Work:
    """What a leader does; says whether two ever do it at once."""

    def __init__(self) -> None:
        self.leaders: list[str] = []
        self.most = 0
        self.began: asyncio.Queue[str] = asyncio.Queue()

    async def __call__(self, name: str) -> None:
        self.leaders.append(name)
        self.most = max(self.most, len(self.leaders))
        self.began.put_nowait(name)
        try:
            await asyncio.Event().wait()
        finally:
            self.leaders.remove(name)


class _Partition:
    """A candidate's way to the API server, which can be cut."""

    def __init__(self, server: FakeApi) -> None:
        self._server = server
        self.is_cut = False

    def __getattr__(self, name: str) -> object:
        if self.is_cut:
            raise ApiUnavailableError("cut off")
        return getattr(self._server, name)


def _candidate(
    server: FakeApi | _Partition, name: str, work: _Work, timing: LeaseTiming = _TIMING
) -> asyncio.Task[None]:
    election = LeaderElection(cast("Api", server), "lease", "ours", name, timing)
    return asyncio.create_task(election.lead(lambda: work(name)))


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, LeadershipLostError):
            await task


async def test_only_one_of_many_leads() -> None:
    server, work = FakeApi(), _Work()
    tasks = [_candidate(server, f"replica-{number}", work) for number in range(5)]
    await work.began.get()
    await asyncio.sleep(3 * _TIMING.duration)  # time in which others might begin
    assert work.most == 1
    assert work.began.empty()
    await _stop(*tasks)


async def test_who_ends_gives_the_lease_back_at_once() -> None:
    server, work = FakeApi(), _Work()
    first = _candidate(server, "first", work)
    await work.began.get()
    second = _candidate(server, "second", work)
    await asyncio.sleep(2 * _TIMING.renew_every)
    await _stop(first)
    async with asyncio.timeout(_TIMING.duration):
        assert await work.began.get() == "second"
    await _stop(second)


async def test_who_is_cut_off_stops_before_another_begins() -> None:
    server, work = FakeApi(), _Work()
    line = _Partition(server)
    first = _candidate(line, "first", work)
    await work.began.get()
    second = _candidate(server, "second", work)
    await asyncio.sleep(2 * _TIMING.renew_every)
    line.is_cut = True
    assert await work.began.get() == "second"
    assert work.most == 1
    with pytest.raises(LeadershipLostError, match="could not be renewed"):
        await first
    await _stop(second)


async def test_an_error_of_the_work_ends_the_leadership_and_is_told() -> None:
    server = FakeApi()

    async def fail() -> None:
        raise ValueError("a defect")

    election = LeaderElection(server, "lease", "ours", "only", _TIMING)
    with pytest.raises(ValueError, match="a defect"):
        await election.lead(fail)
    again = _Work()
    second = _candidate(server, "second", again)
    async with asyncio.timeout(_TIMING.duration):
        await again.began.get()
    await _stop(second)


async def test_a_renewal_whose_answer_was_lost_is_not_taken_for_another_leader() -> None:
    server, work = FakeApi(), _Work()
    task = _candidate(server, "only", work, _PATIENT)
    await work.began.get()
    lost = range(server.traffic.requests + 1, server.traffic.requests + 4)
    server.traffic.answers_lost |= set(lost)
    async with asyncio.timeout(60):
        await server.until(lambda: server.traffic.requests >= lost.stop + 3)
    assert work.leaders == ["only"]
    assert work.began.empty()
    await _stop(task)
