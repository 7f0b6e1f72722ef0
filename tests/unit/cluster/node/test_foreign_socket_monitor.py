"""Who listens at the port of a node's proxy beside it; and how many connections that one keeps. Real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from cedana_sched.cluster.node import foreign_socket_monitor as looking
from cedana_sched.cluster.node.foreign_socket_monitor import ForeignSocketMonitor, HoldPortMetrics
from cedana_sched.cluster.prestop_proxy import call_forwarder as keeping
from cedana_sched.cluster.prestop_proxy.call_forwarder import CallForwarder
from cedana_sched.cluster.prestop_proxy.configuration import PreStopProxyConfiguration
from cedana_sched.cluster.prestop_proxy.listening_socket_registry import (
    listening_inodes_at,
    registered_inodes,
    registering_socket,
)
from cedana_sched.cluster.prestop_proxy.main import serve
from tests.unit.cluster.node.test_prestop_calls import POD_TOKEN, Held
from tests.unit.cluster.prestop_proxy.test_kept_holds import Agents


class Look:
    """One agent's look at the port."""

    def __init__(self, port: int, ours: Path) -> None:
        self.told: list[str] = []
        self._registry = CollectorRegistry()
        metrics = HoldPortMetrics(self._registry)
        self._port = ForeignSocketMonitor(port, ours, self.told.append, lambda _: (), metrics)

    async def twice(self) -> float:
        """How many strangers there are."""
        for _ in range(2):
            await self._port.report_foreign_sockets()
        return self._registry.get_sample_value("cedana_sched_hold_port_foreign_sockets") or 0.0


@contextmanager
def listening(port: int, address: str = "127.0.0.1") -> Iterator[int]:
    """As a pod on the node's network does; the inode."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as taking:
        taking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taking.bind((address, port))
        taking.listen()
        yield os.fstat(taking.fileno()).st_ino


@asynccontextmanager
async def kept(folder: Path) -> AsyncIterator[tuple[int, Path]]:
    """A prestop-proxy pod: its port, and where it says which socket is its own."""
    keeper, ours = CallForwarder(folder / "agent.sock", 30.0), folder / "listeners"
    async with keeper, keeper.serve(0) as port:
        with registering_socket(ours, keeper.inode, port):
            yield port, ours


async def test_ours_is_no_stranger_nor_is_its_successor(tmp_path: Path) -> None:
    async with kept(tmp_path) as (port, ours):
        look = Look(port, ours)
        assert await look.twice() == 0
        with listening(port) as inode, registering_socket(ours, inode, port):
            assert await look.twice() == 0
    assert look.told == []
    assert registered_inodes(ours) == set()


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"])  # noqa: S104  # as a tenant would
async def test_who_takes_calls_beside_ours_is_told_of_once(tmp_path: Path, address: str) -> None:
    async with kept(tmp_path) as (port, ours):
        look = Look(port, ours)
        with listening(port, address):
            assert await look.twice() == 1
            assert await look.twice() == 1
        assert await look.twice() == 0
    [text] = look.told
    assert text.startswith(f"Process {os.getpid()} listens at port {port}")
    assert "hostNetwork" in text


async def test_one_that_has_just_begun_to_listen_has_time_to_say_so(tmp_path: Path) -> None:
    async with kept(tmp_path) as (port, ours):
        look = Look(port, ours)
        with listening(port) as inode:
            await look._port.report_foreign_sockets()
            with registering_socket(ours, inode, port):
                assert await look.twice() == 0
    assert look.told == []


async def test_an_agent_that_cannot_look_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has other things to do, dumps above all."""
    monkeypatch.setattr(looking, "LOOK_SECONDS", 0.0)
    told: asyncio.Queue[str] = asyncio.Queue()
    with socket.create_server(("127.0.0.1", 0)) as other:
        table = tmp_path / "table"
        table.mkdir()  # nothing that can be read
        port = ForeignSocketMonitor(
            other.getsockname()[1], tmp_path / "l", told.put_nowait, lambda _: (), HoldPortMetrics(CollectorRegistry()),
            tables=(table,),
        )  # fmt: skip
        running = asyncio.create_task(port.run())
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert not running.done()
        table.rmdir()
        table.symlink_to("/proc/net/tcp")
        async with asyncio.timeout(60):
            assert "listens at port" in await told.get()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_a_killed_one_has_said_does_not_count_for_another(tmp_path: Path) -> None:
    (tmp_path / "listeners").mkdir()
    (tmp_path / "listeners" / "1").touch()
    async with kept(tmp_path) as (port, ours):
        assert registered_inodes(ours) == listening_inodes_at(port)


async def test_the_process_says_which_socket_is_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = PreStopProxyConfiguration(
        namespace="n", port=port, socket=tmp_path / "s", listeners=tmp_path / "l", serving=tmp_path / "serving"
    )
    stopping = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(serve(told, stopping))
        while not told.serving.exists():  # noqa: ASYNC110  # nothing else shows it
            await asyncio.sleep(0.01)
        assert registered_inodes(told.listeners) == listening_inodes_at(port)
        stopping.set()
    assert registered_inodes(told.listeners) == set()


async def test_whoever_holds_connections_open_takes_no_room_from_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "MOST_OPEN", 4)
    agents, held = Agents(tmp_path), Held()
    keeper = CallForwarder(agents.socket, 30.0)
    async with (
        asyncio.timeout(60),
        agents.one(held),
        keeper,
        keeper.serve(0) as port,
        aiohttp.ClientSession() as session,
    ):

        async def ask() -> int:
            async with session.get(f"http://127.0.0.1:{port}/v1/hold/{POD_TOKEN}/main") as answer:
                return answer.status

        asking = [asyncio.create_task(ask())]
        await held.asked.wait()
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        asking.append(asyncio.create_task(ask()))
        assert await idle[0][0].read() == b"", "the oldest is broken"
        held.release.set()
        assert [await one for one in asking] == [200, 200]
        assert keeper._calls is not None
        assert len(keeper._calls) <= 4
        for _, writer in idle:
            writer.close()
