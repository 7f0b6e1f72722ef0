"""Forwards the kubelet's preStop calls to the agent; retries with its successor.

The kubelet takes a broken call for the hook's end, and never retries it (`executePreStopHook`, in its
kuberuntime_container.go): it goes on to SIGTERM, and a pod whose snapshot is not safe loses its work. An agent does
much, and may be killed or replaced in the middle of it. So it is not the one that the kubelet calls: this is, in a pod
of its own that does nothing else. An agent finds out anew what is held, and answers for its predecessor.

Who gets no answer, because no agent comes, breaks the call on purpose: the kubelet publishes that as an Event.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import structlog
from aiohttp import web
from yarl import URL

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 0.25
"""Before an agent that is away is called again: no event shows that another listens."""
TAKEN_PAUSE_SECONDS = 1.0
"""Before a port is tried again that the agent of an older release still has."""
_LISTENING = "0A"
"""As the kernel's table of sockets shows it."""


class Keeper:
    """The open calls of one node. An async context manager.

    Args:
        socket: where the agent listens, whichever that is.
        away_seconds: how long a call waits for an agent that is not there.
    """

    def __init__(self, socket: Path, away_seconds: float) -> None:
        self._socket = socket
        self._away_seconds = away_seconds
        self._held = 0
        self._changed: list[Callable[[], None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._site: web.TCPSite | None = None
        self._is_leaving = False

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(str(self._socket), limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def busy_with(self) -> list[str]:
        """See `draining.Busy`."""
        return [f"{self._held} preStop call{'s' if self._held > 1 else ''}"] if self._held else []

    def on_change(self, changed: Callable[[], None]) -> None:
        """See `draining.Busy`."""
        self._changed.append(changed)

    @asynccontextmanager
    async def serve(self, port: int, address: str = "127.0.0.1") -> AsyncIterator[int]:
        """Answer as long as the block lasts; the port is given. Another process of ours may have it as well."""
        application = web.Application()
        application.router.add_get("/healthz", _healthy)
        application.router.add_get("/v1/hold/{rest:.+}", self._hold)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            self._site = await _bind(runner, port, address)
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def leave(self) -> None:
        """Leave new calls to another process that has the port; where there is none, look again at each call."""
        self._is_leaving = True
        if self._site is not None and _is_shared(self._site.port):
            site, self._site = self._site, None
            await site.stop()

    async def _hold(self, request: web.Request) -> web.Response:
        self._held += 1
        try:
            if self._is_leaving:
                await self.leave()
            return await self._answer(request)
        except TimeoutError:
            log.warning("no agent came: the kubelet goes on", seconds=self._away_seconds)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)
        finally:
            self._held -= 1
            asyncio.get_running_loop().call_soon(self._tell_changed)  # the answer goes out first

    async def _answer(self, request: web.Request) -> web.Response:
        """Call each agent that comes until one answers.

        Raises:
            TimeoutError: none is there any more.
        """
        assert self._session is not None  # noqa: S101  # `serve` is called inside the block
        url = URL.build(scheme="http", host="agent", path=request.raw_path, encoded=True)
        clock = asyncio.get_running_loop().time
        away_since = clock()
        while True:
            try:
                async with self._session.get(url) as answer:
                    return web.Response(status=answer.status, text=await answer.text())
            except aiohttp.ClientConnectorError as error:
                if clock() - away_since > self._away_seconds:
                    raise TimeoutError from error
                await asyncio.sleep(PAUSE_SECONDS)
            except aiohttp.ClientError as error:
                log.warning("the agent has gone while it held a pod: retried with the next one", why=repr(error))
                away_since = clock()
                await asyncio.sleep(PAUSE_SECONDS)  # it may be there still, and break every call

    def _tell_changed(self) -> None:
        for changed in self._changed:
            changed()


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _bind(runner: web.AppRunner, port: int, address: str) -> web.TCPSite:
    while True:
        site = web.TCPSite(runner, address, port, reuse_port=True)
        try:
            await site.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            log.warning("port is taken, trying again", port=port)
            await asyncio.sleep(TAKEN_PAUSE_SECONDS)
        else:
            return site


def _is_shared(port: int) -> bool:
    """Whether another process in this network listens on it as well (`proc_net_tcp.txt` in Linux' documentation)."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(row[1].endswith(f":{port:04X}") and row[3] == _LISTENING for row in rows) > 1
