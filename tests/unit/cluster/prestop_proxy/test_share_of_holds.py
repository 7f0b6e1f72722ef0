"""What one pod, or one who guesses, can take of the keeper of a node's holds, which every process there can call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from cedana_sched.cluster.prestop_proxy import call_forwarder as module
from cedana_sched.cluster.prestop_proxy import call_limits
from cedana_sched.cluster.prestop_proxy.call_forwarder import CallForwarder
from tests.unit.cluster.node.test_prestop_calls import POD_TOKEN, Held
from tests.unit.cluster.prestop_proxy.test_kept_holds import Agents


async def test_a_pod_has_so_many_calls_open_and_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_limits, "MOST_OF_A_POD", 2)
    monkeypatch.setattr(module, "UNKNOWN_SECONDS", 0.0)
    agents, held = Agents(tmp_path), Held()
    keeper = CallForwarder(agents.socket, 30.0)
    async with agents.one(held), keeper, keeper.serve(0) as port, aiohttp.ClientSession() as session:

        async def ask(token: str) -> int:
            async with session.get(f"http://127.0.0.1:{port}/v1/hold/{token}/main") as answer:
                return answer.status

        asking = {asyncio.create_task(ask(POD_TOKEN)) for _ in range(3)}
        [refused], waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        assert await refused == 429
        assert await ask("another") == 404, "that of another pod is passed on"
        held.release.set()
        assert [await one for one in waiting] == [200, 200]
        assert await ask(POD_TOKEN) == 200
        assert keeper._shares._open == {}


async def test_who_names_no_pod_waits_for_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNKNOWN_SECONDS", 0.2)
    agents = Agents(tmp_path)
    keeper = CallForwarder(agents.socket, 30.0)
    async with agents.one(Held()), keeper, keeper.serve(0) as port, aiohttp.ClientSession() as session:
        began = asyncio.get_running_loop().time()
        async with session.get(f"http://127.0.0.1:{port}/v1/hold/{'x' * 32}/main") as answer:
            assert answer.status == 404
        assert asyncio.get_running_loop().time() - began >= 0.2


def test_all_containers_of_a_pod_may_call_twice() -> None:
    assert call_limits.MOST_OF_A_POD >= 2 * 256
