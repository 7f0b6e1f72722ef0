"""A preStop call of the kubelet outlives the agent that it was passed to; over real connections."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from cedana_sched.cluster.node.prestop_server import PreStopServer
from cedana_sched.cluster.prestop_proxy import call_forwarder as module
from cedana_sched.cluster.prestop_proxy import listening_socket as listening
from cedana_sched.cluster.prestop_proxy.call_forwarder import CallForwarder
from cedana_sched.cluster.prestop_proxy.configuration import PreStopProxyConfiguration
from cedana_sched.cluster.prestop_proxy.main import serve
from cedana_sched.component.draining import wait_idle
from tests.unit.cluster.node.test_prestop_calls import POD_TOKEN, Held

PATH = f"/v1/hold/{POD_TOKEN}/main"


class Agents:
    """Those of one node, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "agent.sock"

    @asynccontextmanager
    async def one(self, held: Held) -> AsyncIterator[None]:
        """It breaks what it has not answered at the end, as the kernel does for one that is killed."""
        async with PreStopServer(held.find, held.deleted, held.released).serve(self.socket):
            yield


class Kubelet:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}{PATH}"

    async def asks(self) -> tuple[int, str]:
        async with self._session.get(self._url) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def _kept(agents: Agents, away_seconds: float = 30.0) -> AsyncIterator[Kubelet]:
    keeper = CallForwarder(agents.socket, away_seconds)
    async with keeper, keeper.serve(0) as port, aiohttp.ClientSession() as session:
        yield Kubelet(session, port)


def test_two_minutes_are_waited_for_an_agent() -> None:
    assert PreStopProxyConfiguration(namespace="n").agent_away_seconds == 2 * 60


async def test_an_agents_answer_is_the_kubelets(tmp_path: Path) -> None:
    agents, held = Agents(tmp_path), Held()
    async with agents.one(held), _kept(agents) as kubelet:
        asking = asyncio.create_task(kubelet.asks())
        await held.asked.wait()
        assert not asking.done()
        held.release.set()
        assert await asking == (200, "released\n")


async def test_a_pod_is_held_on_by_the_next_agent(tmp_path: Path) -> None:
    agents, first, second = Agents(tmp_path), Held(), Held()
    async with _kept(agents) as kubelet:
        async with agents.one(first):
            asking = asyncio.create_task(kubelet.asks())
            await first.asked.wait()
        assert not asking.done()
        async with agents.one(second):
            await asyncio.wait_for(second.asked.wait(), 60)
            assert not asking.done()
            second.release.set()
            assert await asking == (200, "released\n")
    assert "released" not in first.told


async def test_a_pod_that_is_deleted_between_two_agents_waits_for_the_next(tmp_path: Path) -> None:
    agents, held = Agents(tmp_path), Held()
    async with _kept(agents) as kubelet:
        asking = asyncio.create_task(kubelet.asks())
        held.release.set()
        await asyncio.sleep(0.6)  # no agent listens at its first try
        assert not asking.done()
        async with agents.one(held):
            assert await asyncio.wait_for(asking, 60) == (200, "released\n")


async def test_without_an_agent_the_call_breaks_after_a_while_so_that_the_kubelet_tells(tmp_path: Path) -> None:
    async with _kept(Agents(tmp_path), away_seconds=0.01) as kubelet:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await asyncio.wait_for(kubelet.asks(), 60)


async def test_a_hold_may_last_longer_than_an_agent_may_be_away(tmp_path: Path) -> None:
    agents, held = Agents(tmp_path), Held()
    async with agents.one(held), _kept(agents, away_seconds=0.01) as kubelet:
        asking = asyncio.create_task(kubelet.asks())
        await held.asked.wait()
        await asyncio.sleep(0.1)  # longer than that
        held.release.set()
        assert await asking == (200, "released\n")


async def test_an_agent_that_breaks_every_call_is_not_asked_without_a_pause(tmp_path: Path) -> None:
    agents, asked = Agents(tmp_path), 0

    async def breaks(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    async with await asyncio.start_unix_server(breaks, str(agents.socket)), _kept(agents) as kubelet:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(kubelet.asks(), 1.0)
    assert 0 < asked < 10


async def test_a_kubelet_that_hangs_up_is_held_for_no_more(tmp_path: Path) -> None:
    agents, held = Agents(tmp_path), Held()
    keeper = CallForwarder(agents.socket, away_seconds=30.0)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(agents.one(held))
        await stack.enter_async_context(keeper)
        port = await stack.enter_async_context(keeper.serve(0))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        changed = asyncio.Event()
        keeper.subscribe_to_changes(changed.set)
        asking = asyncio.create_task(Kubelet(session, port).asks())
        await held.asked.wait()
        assert keeper.busy_with() == ["1 preStop call"]
        asking.cancel()
        await asyncio.wait_for(changed.wait(), 60)
        assert keeper.busy_with() == []


async def _exists(path: Path) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(path.exists):  # as the kubelet looks for it
            pass


async def test_two_of_them_share_the_port_and_the_first_ends_when_it_holds_nothing(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    agents, held = Agents(tmp_path), Held()
    told, serving = [asyncio.Event(), asyncio.Event()], tmp_path / "serving"
    configuration = PreStopProxyConfiguration(
        namespace="n", port=unused_tcp_port, socket=agents.socket, serving=serving, agent_away_seconds=10
    )
    async with agents.one(held), aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        keepers = [group.create_task(serve(configuration, one)) for one in told[:1]]
        await _exists(serving)
        asking = group.create_task(Kubelet(session, unused_tcp_port).asks())
        await held.asked.wait()
        serving.unlink()
        keepers.append(group.create_task(serve(configuration, told[1])))
        await _exists(serving)
        told[0].set()
        held.release.set()
        assert await asking == (200, "released\n")
        await asyncio.wait_for(keepers[0], 60)
        assert await Kubelet(session, unused_tcp_port).asks() == (200, "released\n")
        told[1].set()


async def test_one_that_is_to_end_leaves_all_new_calls_to_the_next(tmp_path: Path, unused_tcp_port: int) -> None:
    folders = [tmp_path / "first", tmp_path / "next"]
    for folder in folders:
        folder.mkdir()
    (agents, held), (next_agents, next_held) = ((Agents(folder), Held()) for folder in folders)
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session, agents.one(held), next_agents.one(next_held):
        kubelet = Kubelet(session, unused_tcp_port)
        async with CallForwarder(agents.socket, 30.0) as keeper, keeper.serve(unused_tcp_port):
            asking = [asyncio.create_task(kubelet.asks())]
            await held.asked.wait()
            held.asked.clear()
            await keeper.leave_to_successor()
            asking.append(asyncio.create_task(kubelet.asks()))
            await asyncio.wait_for(held.asked.wait(), 60)  # nobody else is there
            held.asked.clear()
            async with CallForwarder(next_agents.socket, 30.0) as another, another.serve(unused_tcp_port):
                await keeper.leave_to_successor()
                next_held.release.set()
                answers = await asyncio.wait_for(asyncio.gather(*(kubelet.asks() for _ in range(16))), 60)
                assert answers == [(200, "released\n")] * 16
                assert not held.asked.is_set()
                held.release.set()
                assert await asyncio.gather(*asking) == [(200, "released\n")] * 2
                assert keeper.busy_with() == []


def _connected(port: int) -> socket.socket:
    """By the kernel: nothing is accepted before the caller awaits something."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.setblocking(False)
    return connection


async def _asked(connection: socket.socket) -> str:
    """The status line, or how the call breaks."""
    try:
        reader, writer = await asyncio.open_connection(sock=connection)
        writer.write(f"GET {PATH} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await writer.wait_closed()
    except OSError as error:
        return repr(error)
    return answer.decode().partition("\r\n")[0]


@pytest.fixture(params=["all", "steering", "nothing"])
def attached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the kernel lets a process without capabilities attach to a socket: Linux 6.18 takes no filter of it."""
    may = str(request.param)
    refused = {"all": (), "steering": (26,), "nothing": (26, 51)}[may]
    attach = socket.socket.setsockopt

    def attach_some(one: socket.socket, level: int, option: int, value: int | bytes) -> None:
        if level == socket.SOL_SOCKET and option in refused:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        attach(one, level, option, value)

    monkeypatch.setattr(socket.socket, "setsockopt", attach_some)
    return may


async def test_calls_that_the_kernel_has_queued_for_one_that_leaves_are_answered(
    tmp_path: Path, unused_tcp_port: int, attached: str
) -> None:
    agents, held = Agents(tmp_path), Held()
    held.release.set()
    keepers = [CallForwarder(agents.socket, 30.0) for _ in range(2)]
    async with agents.one(held), keepers[0], keepers[1], AsyncExitStack() as stack:
        for keeper in keepers:
            await stack.enter_async_context(keeper.serve(unused_tcp_port))
        called = [_connected(unused_tcp_port) for _ in range(40)]
        await keepers[0].leave_to_successor()
        assert await asyncio.gather(*map(_asked, called)) == ["HTTP/1.1 200 OK"] * 40
        called = [_connected(unused_tcp_port) for _ in range(10)]
        if attached != "nothing":
            assert keepers[0].busy_with() == [], "the next one has all new calls"
        assert await asyncio.gather(*map(_asked, called)) == ["HTTP/1.1 200 OK"] * 10


@pytest.mark.usefixtures("attached")
async def test_one_that_is_to_end_reads_the_call_of_each_connection_that_it_has(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    agents, held = Agents(tmp_path), Held()
    held.release.set()
    stopping, serving = asyncio.Event(), tmp_path / "serving"
    configuration = PreStopProxyConfiguration(
        namespace="n", port=unused_tcp_port, socket=agents.socket, serving=serving
    )
    async with agents.one(held):
        keeper = asyncio.create_task(serve(configuration, stopping))
        await _exists(serving)
        called = [_connected(unused_tcp_port) for _ in range(5)]
        stopping.set()
        ended, _ = await asyncio.wait({keeper}, timeout=0.5)
        assert not ended
        assert await asyncio.gather(*map(_asked, called)) == ["HTTP/1.1 200 OK"] * 5
        await asyncio.wait_for(keeper, 60)
        with pytest.raises(ConnectionRefusedError):
            _connected(unused_tcp_port)


async def test_who_listens_at_another_address_takes_no_calls_of_ours(tmp_path: Path, unused_tcp_port: int) -> None:
    agents, held = Agents(tmp_path), Held()
    held.release.set()
    with socket.create_server(("127.0.0.2", unused_tcp_port), reuse_port=True):
        async with agents.one(held), CallForwarder(agents.socket, 30.0) as keeper, keeper.serve(unused_tcp_port):
            await keeper.leave_to_successor()
            assert await _asked(_connected(unused_tcp_port)) == "HTTP/1.1 200 OK"


async def test_who_connects_and_says_nothing_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.05)
    async with CallForwarder(tmp_path / "agent.sock", 30.0) as keeper, keeper.serve(0) as port:
        with _connected(port):
            await asyncio.wait_for(wait_idle([keeper]), 60)
            await keeper.close()
            await asyncio.wait_for(wait_idle([keeper]), 60)


@pytest.mark.parametrize("is_leaving", [False, True])
async def test_calls_wait_for_a_process_that_has_too_many_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_leaving: bool
) -> None:
    agents, held, failures = Agents(tmp_path), Held(), [OSError(errno.EMFILE, "Too many open files")]
    held.release.set()
    accept = socket.socket.accept

    def accept_later(one: socket.socket) -> tuple[socket.socket, object]:
        if failures and one.family == socket.AF_INET:
            raise failures.pop()
        return accept(one)

    monkeypatch.setattr(listening, "NO_ROOM_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(socket.socket, "accept", accept_later)
    async with agents.one(held), CallForwarder(agents.socket, 30.0) as keeper, keeper.serve(0) as port:
        called = _connected(port)
        if is_leaving:
            await keeper.close()
        assert await _asked(called) == "HTTP/1.1 200 OK"
    assert not failures
