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
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import structlog
from aiohttp import web
from yarl import URL

from cedana_sched.cluster.holds.listener import Listener
from cedana_sched.cluster.holds.share import UNKNOWN_SECONDS, Shares

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 0.25
"""Before an agent that is away is called again: no event shows that another listens."""
TAKEN_PAUSE_SECONDS = 1.0
"""Before a port is tried again that the agent of an older version still has."""
SILENT_SECONDS = 60.0
"""A connection over which nothing is called for so long is closed; the kubelet calls at once."""
END_SECONDS = 1.0
"""For calls that are held when we must end all the same."""
BUFFER_BYTES = 1 << 12
"""Of what comes over a connection and is not read: a call has no body."""
MOST_OPEN = 2_048
"""Connections; a node has some hundred containers. Of more, those go first over which no pod is held."""
_HOLD = "/v1/hold/"


class _Calls(web.Server):
    """The connections that are open: each is one call, from before it is read until its answer is out."""

    def __init__(
        self, answer: Callable[[web.BaseRequest], Awaitable[web.Response]], changed: Callable[[], None]
    ) -> None:
        super().__init__(
            answer,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=SILENT_SECONDS,
            read_bufsize=BUFFER_BYTES,
        )
        self._changed = changed
        self._open: dict[web.RequestHandler, None] = {}
        """The oldest first."""
        self._held: set[web.RequestHandler] = set()
        self._beginning: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open) + len(self._beginning)

    def take(self, connection: socket.socket) -> None:
        """Read what is called over a connection that was accepted, if there is room for it."""
        if len(self) >= MOST_OPEN and not self._made_room():
            log.warning("too many calls are open: another one is not answered", open=len(self))
            connection.close()
            return
        task = asyncio.create_task(self._begin(connection), name="preStop call")
        self._beginning.add(task)
        task.add_done_callback(self._has_begun)

    async def _begin(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(self, connection)

    def _has_begun(self, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.warning("a call could not be read", why=repr(error))
        self._changed()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open[handler] = None

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._open.pop(handler, None)
        self._changed()

    @contextmanager
    def held(self, handler: web.RequestHandler) -> Iterator[None]:
        """A pod is held over this connection inside the block."""
        self._held.add(handler)
        try:
            yield
        finally:
            self._held.discard(handler)

    def _made_room(self) -> bool:
        """Break the oldest connection over which nobody is held; False where there is none."""
        idle = next((one for one in self._open if one not in self._held), None)
        if idle is None:
            return False
        del self._open[idle]
        if idle.transport is not None:
            idle.transport.abort()
        return True

    async def end(self) -> None:
        """Break what is open; who is held has a moment left."""
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)
        self.pre_shutdown()
        await self.shutdown(END_SECONDS)


class Keeper:
    """The open calls of one node. An async context manager.

    Args:
        socket: where the agent listens, whichever that is.
        away_seconds: how long a call waits for an agent that is not there.
    """

    def __init__(self, socket: Path, away_seconds: float) -> None:
        self._socket = socket
        self._away_seconds = away_seconds
        self._changed: list[Callable[[], None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._listener: Listener | None = None
        self._calls: _Calls | None = None
        self._is_leaving = False
        self._shares = Shares()
        self._turn = asyncio.Lock()
        self._looks: set[asyncio.Task[None]] = set()

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
        """See `draining.Busy`: connections count, for what is called over one may not have been read yet."""
        number = len(self._calls) if self._calls is not None else 0
        return [f"{number} preStop call{'s' if number > 1 else ''}"] if number else []

    def on_change(self, changed: Callable[[], None]) -> None:
        """See `draining.Busy`."""
        self._changed.append(changed)

    @property
    def inode(self) -> int:
        """Of the socket that calls come to, while it serves."""
        assert self._listener is not None  # noqa: S101  # see above
        return self._listener.inode

    @asynccontextmanager
    async def serve(self, port: int, address: str = "127.0.0.1") -> AsyncIterator[int]:
        """Answer as long as the block lasts; the port is given. Another process of ours may have it as well."""
        listener = self._listener = await _bind(port, address)
        calls = self._calls = _Calls(self._respond, self._tell_changed)
        listener.serve(calls.take)
        try:
            yield listener.port
        finally:
            listener.close()
            for look in self._looks:
                look.cancel()
            await asyncio.gather(*self._looks, return_exceptions=True)
            await calls.end()

    async def leave(self) -> None:
        """Leave new calls to another process that listens there; where there is none, look again at each call."""
        self._is_leaving = True
        async with self._turn:
            if self._listener is not None and self._listener.is_open and await self._listener.is_shared():
                await self._listener.leave()

    async def close(self) -> None:
        """Take no more calls, whether anybody else does or not. Those that have come are held on."""
        async with self._turn:
            if self._listener is not None:
                await self._listener.leave()

    def _look_again(self) -> None:
        """Leave, if somebody else is there now; no call waits for that, or breaks because it fails."""
        if self._is_leaving and not self._looks and self._listener is not None and self._listener.is_open:
            look = asyncio.create_task(self.leave(), name="look for a successor")
            self._looks.add(look)
            look.add_done_callback(self._has_looked)

    def _has_looked(self, look: asyncio.Task[None]) -> None:
        self._looks.discard(look)
        if not look.cancelled() and (error := look.exception()) is not None:
            log.warning("calls could not be left to a successor", why=repr(error))

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        if request.path.startswith(_HOLD):
            response = await self._hold(request)
        elif request.path == "/healthz":
            response = web.Response(text="ok\n")
        else:
            response = web.Response(status=404)
        response.force_close()  # a connection is one call
        return response

    async def _hold(self, request: web.BaseRequest) -> web.Response:
        self._look_again()
        try:
            with self._shares.one_more(_token_of(request.path)) as may:
                if not may:
                    return web.Response(status=429, text="more calls of this pod are open than it has containers\n")
                assert self._calls is not None  # noqa: S101  # it has read this one
                with self._calls.held(request.protocol):
                    response = await self._answer(request)
                if response.status == 404:
                    await asyncio.sleep(UNKNOWN_SECONDS)
                return response
        except TimeoutError:
            log.warning("no agent came: the kubelet goes on", seconds=self._away_seconds)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
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


def _token_of(path: str) -> str:
    """Of `/v1/hold/TOKEN/CONTAINER`."""
    return path.removeprefix(_HOLD).partition("/")[0]


async def _bind(port: int, address: str) -> Listener:
    while True:
        try:
            return Listener(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            log.warning("port is taken, trying again", port=port)
            await asyncio.sleep(TAKEN_PAUSE_SECONDS)
