"""The secret part of the extender's address: in a Secret that the chart has made, against an API server in memory."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from cedana_sched.component import secret_reconciler
from cedana_sched.component.callers import secret_segment_of
from cedana_sched.kube.resources import SECRETS
from cedana_sched.testing import FakeApi
from cedana_sched_volcano.extender.address_secret import DERIVED_FROM, FORMER_SECONDS, AddressKeeper
from cedana_sched_volcano.extender.metrics import Metrics
from tests.pauses import shorten_pauses

NAME, NAMESPACE = "extender", "ours"
PROBLEMS = "cedana_sched_volcano_extender_address_problems_total"
OWN = "words-of-an-admin-who-writes-both"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(secret_reconciler, "SHORTEST_WAIT_SECONDS", 0.001)


class Installation:
    """An API server with the Secret of the chart, and replicas that come and go."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.seconds = [1000.0]
        self.metrics = Metrics()
        self._tasks: list[asyncio.Task[None]] = []
        self.write({})

    def write(self, data: dict[str, bytes]) -> None:
        metadata = {"name": NAME, "namespace": NAMESPACE}
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        self.api.put(SECRETS, {"metadata": metadata, "data": encoded})

    def secret(self) -> dict[str, bytes]:
        data = self.api.stored(SECRETS, NAME, NAMESPACE).get("data", {})
        return {key: base64.b64decode(value) for key, value in data.items()}

    def segment(self) -> str:
        """As an admin reads it."""
        return self.secret().get("segment", b"").decode()

    @asynccontextmanager
    async def replica(self) -> AsyncIterator[AddressKeeper]:
        keeper = AddressKeeper(
            self.api, NAME, NAMESPACE, self.metrics.address_problems, _now, clock=lambda: self.seconds[0]
        )
        task = asyncio.create_task(keeper.run())
        self._tasks.append(task)
        try:
            yield keeper
        finally:
            self._tasks.remove(task)
            task.cancel()
            await asyncio.wait([task])

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                for task in self._tasks:
                    assert not task.done(), task.exception()
                await asyncio.sleep(0.001)

    @property
    def problems(self) -> float:
        return self.metrics.registry.get_sample_value(PROBLEMS) or 0.0


def _now() -> dt.datetime:
    return dt.datetime.now(tz=dt.UTC)


def is_known(keeper: AddressKeeper, segment: str) -> bool:
    return keeper.callers.is_known(segment, DERIVED_FROM)


async def test_the_first_replica_makes_one_that_all_know_and_an_admin_can_read() -> None:
    there = Installation()
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(there.replica()) for _ in range(3)]
        await there.until(lambda: all(one.callers.has_secret for one in replicas))
        secret = there.secret()["callers.key"].decode()
        assert there.segment() == secret_segment_of(secret, DERIVED_FROM)
        assert len(secret) >= 43
        assert all(is_known(one, there.segment()) for one in replicas)
    assert [one[:2] for one in there.api.traffic.writes] == [("patch", SECRETS)]


async def test_a_replica_that_comes_later_changes_nothing() -> None:
    there = Installation()
    async with there.replica():
        await there.until(there.segment)
    before, writes = there.secret(), list(there.api.traffic.writes)
    async with there.replica() as late:
        await there.until(lambda: late.callers.has_secret)
        assert is_known(late, there.segment())
    assert (there.secret(), there.api.traffic.writes) == (before, writes)


async def test_who_empties_it_gets_a_new_one_and_the_old_one_counts_until_it_is_written_elsewhere() -> None:
    there = Installation()
    async with there.replica() as replica:
        await there.until(lambda: replica.callers.has_secret)
        former = there.segment()
        there.write({**there.secret(), "callers.key": b""})
        await there.until(lambda: there.segment() != former)
        await there.until(lambda: is_known(replica, there.segment()))
        there.seconds[0] += FORMER_SECONDS - 1
        assert is_known(replica, former)
        there.seconds[0] += 1
        assert not is_known(replica, former)
        assert is_known(replica, there.segment())


async def test_an_admin_may_choose_the_secret() -> None:
    there = Installation()
    there.write({"callers.key": OWN.encode()})
    async with there.replica() as replica:
        await there.until(there.segment)
        assert there.secret() == {
            "callers.key": OWN.encode(),
            "segment": secret_segment_of(OWN, DERIVED_FROM).encode(),
        }
        assert is_known(replica, there.segment())


async def test_what_somebody_writes_as_the_segment_is_never_believed() -> None:
    there, other = Installation(), "0" * 64
    async with there.replica() as replica:
        await there.until(lambda: replica.callers.has_secret)
        own = there.segment()
        there.write({**there.secret(), "segment": other.encode()})
        await there.until(lambda: there.segment() == own)
        assert not is_known(replica, other)


@pytest.mark.parametrize("written", [b"", b"short", b"with/a/slash" * 4, b"\xff" * 40])
async def test_what_cannot_be_a_secret_is_replaced(written: bytes) -> None:
    there = Installation()
    there.write({"callers.key": written, "segment": b"x"})
    async with there.replica() as replica:
        await there.until(lambda: replica.callers.has_secret)
        assert there.secret()["callers.key"] != written
        assert is_known(replica, there.segment())


async def test_without_the_secret_of_the_chart_nobody_is_known_until_it_is_there() -> None:
    there = Installation()
    there.api.remove(SECRETS, NAME, NAMESPACE)
    async with there.replica() as replica:
        await there.until(lambda: there.problems >= 2)
        assert not replica.callers.has_secret
        there.write({})
        await there.until(lambda: replica.callers.has_secret)


async def test_a_secret_that_goes_is_missed_and_its_address_goes_on_counting() -> None:
    """Volcano's configuration still names it."""
    there = Installation()
    async with there.replica() as replica:
        await there.until(lambda: replica.callers.has_secret)
        segment = there.segment()
        there.api.remove(SECRETS, NAME, NAMESPACE)
        await there.until(lambda: there.problems >= 1)
        assert is_known(replica, segment)


async def test_a_write_that_is_refused_is_counted_and_tried_again() -> None:
    there = Installation()
    there.api.traffic.refusing[SECRETS] = 403
    async with there.replica() as replica:
        await there.until(lambda: there.problems >= 2)
        there.api.traffic.refusing.clear()
        await there.until(lambda: replica.callers.has_secret)
