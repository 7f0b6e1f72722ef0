"""An adapter's notes outlive the coordinator, and only the newest one writes them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cedana_sched.cluster.coordinator.adapter_notes import ConfigMapNotes
from cedana_sched.model.errors import RetryableError
from cedana_sched.testing import FakeApi


def notes(server: FakeApi, writer: str = "first", adapter: str = "armada") -> ConfigMapNotes:
    return ConfigMapNotes(cast("Any", server), "cedana-system", adapter, writer)


@pytest.fixture
def server() -> FakeApi:
    return FakeApi()


async def test_what_was_written_last_is_read_by_whoever_comes_next(server: FakeApi) -> None:
    before = notes(server)
    assert await before.read() is None
    await before.write(b"1")
    await before.write(b"2")
    assert await notes(server, "second").read() == b"2"
    assert await notes(server, adapter="other").read() is None


async def test_it_can_be_written_without_having_been_read(server: FakeApi) -> None:
    await notes(server).write(b"1")
    assert await notes(server).read() == b"1"


async def test_whom_another_one_has_followed_writes_no_more(server: FakeApi) -> None:
    before, after = notes(server), notes(server, "second")
    await before.write(b"1")
    assert await after.read() == b"1"
    for _ in range(2):
        with pytest.raises(RetryableError, match="not kept"):
            await before.write(b"late")
    await after.write(b"2")
    assert await notes(server, "third").read() == b"2"


async def test_a_write_whose_answer_was_lost_does_not_stand_in_its_own_way(server: FakeApi) -> None:
    kept = notes(server)
    await kept.write(b"1")
    server.traffic.answers_lost.add(server.traffic.requests + 1)
    with pytest.raises(RetryableError):
        await kept.write(b"2")
    with pytest.raises(RetryableError):
        await kept.write(b"3")
    await kept.write(b"3")
    assert await notes(server, "second").read() == b"3"


async def test_notes_that_somebody_deletes_are_written_anew(server: FakeApi) -> None:
    kept = notes(server)
    await kept.write(b"1")
    server.objects.clear()
    with pytest.raises(RetryableError):
        await kept.write(b"2")
    await kept.write(b"2")
    assert await notes(server, "second").read() == b"2"


async def test_an_api_server_that_does_not_answer_is_asked_again(server: FakeApi) -> None:
    server.traffic.fails.add(1)
    with pytest.raises(RetryableError):
        await notes(server).read()


async def test_damaged_notes_are_none(server: FakeApi) -> None:
    await notes(server).write(b"1")
    (body,) = server.objects.values()
    body["binaryData"]["notes"] = "?"
    assert await notes(server).read() is None
