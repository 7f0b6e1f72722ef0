"""The API's refusals: whatever is wrong comes back as a problem that every client can read."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cedana_sched.local.api import serve
from cedana_sched.local.client import EngineClient, EngineRefusedError, socket_path
from cedana_sched.local.engine import _first_product_error
from cedana_sched.local.hub import QUEUE_LENGTH, Hub
from cedana_sched.local.views import Change, EventView
from cedana_sched.model.errors import IntegrityError, StoreUnavailableError, UsageError


class Service:
    """Refuses or breaks as the name of the job says."""

    def job(self, key: str) -> Any:
        if key == "away":
            raise StoreUnavailableError("the store does not answer", remedy="start it")
        raise ZeroDivisionError("a defect")

    async def submit(self, submission: object) -> Any:
        raise AssertionError(f"{submission} should not have come so far")


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[Path]:
    service: Any = Service()
    async with serve(service, tmp_path):
        yield tmp_path


async def test_the_socket_is_open_to_its_owner_alone(state: Path) -> None:
    assert stat.S_IMODE(socket_path(state).stat().st_mode) == 0o600


async def test_an_error_of_ours_keeps_its_kind(state: Path) -> None:
    async with EngineClient(state) as client:
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            await client.job("away")


async def test_a_defect_is_said_and_does_not_break_the_client(state: Path) -> None:
    async with EngineClient(state) as client:
        with pytest.raises(EngineRefusedError, match="the engine failed: ZeroDivisionError"):
            await client.job("any")


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b'{"argv": 1}', 400), (b'{"unknown": 1}', 400)])
async def test_a_body_that_cannot_be_read_is_a_bad_request(state: Path, body: bytes, status: int) -> None:
    connector = aiohttp.UnixConnector(str(socket_path(state)))
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.post("http://engine/v1/jobs", data=body) as response:
            assert response.status == status
            assert (await response.json())["field"] == "request"
        async with session.get("http://engine/nowhere") as response:
            assert (response.status, "Not Found" in (await response.json())["message"]) == (404, True)


def test_a_state_directory_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too long a path"):
        EngineClient(tmp_path / ("deep" * 30))


async def test_a_watcher_that_does_not_keep_up_is_cut_off() -> None:
    hub = Hub()
    watching = hub.watch([Change()])
    assert await anext(watching) == Change()
    for number in range(QUEUE_LENGTH + 5):
        hub.publish(Change(event=EventView(number, "Some", "event")))
    assert not hub.has_watchers
    assert len([change async for change in watching]) == QUEUE_LENGTH


def test_what_ended_the_engine_is_one_error_if_all_are_ours() -> None:
    damaged = IntegrityError("the journal is damaged")
    assert _first_product_error(ExceptionGroup("tasks", [ExceptionGroup("inner", [damaged])])) is damaged
    assert _first_product_error(ExceptionGroup("tasks", [damaged, ValueError()])) is None
