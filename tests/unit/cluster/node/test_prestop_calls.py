"""The preStop calls that the keeper of the holds passes on, over a real connection."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from cedana_sched.cluster.node.prestop_server import PreStopServer, same_token
from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.model.errors import CedanaSchedError

POD_TOKEN = "secret"  # noqa: S105 - of a pod that does not exist
POD = Pod(Metadata(name="p", namespace="team-a", uid="u-1"))


class Held:
    """What the server is given."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.asked = asyncio.Event()
        self.release = asyncio.Event()
        self.error: CedanaSchedError | None = None

    def find(self, token: str, container: str) -> Pod | None:
        return POD if same_token(POD_TOKEN, token) and container in {"", "main"} else None

    async def deleted(self, uid: str) -> None:
        self.told.append(uid)
        if self.error:
            raise self.error

    async def released(self, uid: str) -> None:
        self.told.append(f"waits {uid}")
        self.asked.set()
        await self.release.wait()
        self.told.append("released")


@asynccontextmanager
async def _served(server: PreStopServer, folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    socket = folder / "holds" / "agent.sock"
    async with server.serve(socket), aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session:
        yield session


async def _ask(held: Held, folder: Path, *, given: str = POD_TOKEN, longest: float = 30.0) -> tuple[int, str]:
    server = PreStopServer(held.find, held.deleted, held.released, longest)
    async with _served(server, folder) as session, session.get(f"http://agent/v1/hold/{given}") as answer:
        return answer.status, await answer.text()


async def test_a_pod_is_held_until_it_is_released(tmp_path: Path) -> None:
    held = Held()
    asking = asyncio.create_task(_ask(held, tmp_path))
    await held.asked.wait()
    assert not asking.done()
    held.release.set()
    assert await asking == (200, "released\n")
    assert held.told == ["u-1", "waits u-1", "released"]


async def test_the_socket_is_roots_alone(tmp_path: Path) -> None:
    held = Held()
    async with _served(PreStopServer(held.find, held.deleted, held.released), tmp_path):
        socket = (tmp_path / "holds" / "agent.sock").stat()
        assert (socket.st_uid, stat.S_IMODE(socket.st_mode) & 0o022) == (os.geteuid(), 0)
        assert stat.S_IMODE((tmp_path / "holds").stat().st_mode) == 0o700


async def test_an_unknown_token_is_answered_at_once(tmp_path: Path) -> None:
    held = Held()
    assert (await _ask(held, tmp_path, given="guessed"))[0] == 404
    assert held.told == []


async def test_a_hold_has_an_end(tmp_path: Path) -> None:
    held = Held()
    assert await _ask(held, tmp_path, longest=0.01) == (200, "released: held too long\n")


async def test_a_pod_that_does_not_end_is_the_kubelets(tmp_path: Path) -> None:
    held = Held()
    held.error = CedanaSchedError("process 7 does not go")
    assert await _ask(held, tmp_path) == (500, "process 7 does not go\n")


async def test_a_kubelet_that_hangs_up_is_not_waited_for(tmp_path: Path) -> None:
    held = Held()
    server = PreStopServer(held.find, held.deleted, held.released)
    async with _served(server, tmp_path) as session:
        asking = asyncio.create_task(session.get(f"http://agent/v1/hold/{POD_TOKEN}"))
        await held.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert "released" not in held.told


async def test_each_container_that_the_kubelet_goes_on_to_end_is_named(tmp_path: Path) -> None:
    held = Held()
    held.release.set()
    ended: list[tuple[str, str]] = []

    def answered(pod: Pod, container: str) -> None:
        ended.append((pod.metadata.uid, container))

    server = PreStopServer(held.find, held.deleted, held.released, on_answered=answered)
    async with _served(server, tmp_path) as session:
        for path in (f"{POD_TOKEN}/main", POD_TOKEN, "guessed/main", f"{POD_TOKEN}/other"):
            await (await session.get(f"http://agent/v1/hold/{path}")).text()
    assert ended == [("u-1", "main")], "an older version gave its pods no name to say"
