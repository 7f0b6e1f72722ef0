"""Forwards the kubelet's preStop calls to the agent; retries with its successor.

The kubelet takes a broken call for the end of the hook and never retries it (`executePreStopHook`, in its
kuberuntime_container.go): it proceeds to SIGTERM, and a pod without a committed snapshot loses its work. An agent does
much, and may be killed or replaced in the middle of a call. Therefore the kubelet calls this component, which runs in a
pod of its own and does nothing else. A new agent rebuilds the set of held pods and answers for its predecessor.

A call for which no agent appears in time is broken on purpose: the kubelet publishes a broken call as an Event.
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

from cedana_sched.cluster.prestop_proxy.call_limits import UNKNOWN_SECONDS, OpenCallLimits
from cedana_sched.cluster.prestop_proxy.listening_socket import ListeningSocket

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 0.25
"""Retry interval while no agent listens: no event shows that an agent has started to listen."""
TAKEN_PAUSE_SECONDS = 1.0
"""Retry interval while the agent of an older version has the port."""
SILENT_SECONDS = 60.0
"""Idle timeout of a connection without a request; the kubelet sends its request at once."""
END_SECONDS = 1.0
"""Grace for held calls at a forced shutdown."""
BUFFER_BYTES = 1 << 12
"""Read buffer of a connection: a call has no body."""
MOST_OPEN = 2_048
"""Maximum number of connections; a node has some hundred containers. Above it, connections that hold no pod are
closed first."""
_HOLD = "/v1/hold/"


class _OpenCalls(web.Server):
    """The open connections: each is one call, from before the request is read until the response is sent."""

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
        """Oldest first."""
        self._held: set[web.RequestHandler] = set()
        self._beginning: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open) + len(self._beginning)

    def begin_call(self, connection: socket.socket) -> None:
        """Read the request of an accepted connection, if the limit allows one more."""
        if len(self) >= MOST_OPEN and not self._made_room():
            log.warning("too many calls are open: another one is not answered", open=len(self))
            connection.close()
            return
        task = asyncio.create_task(self._begin_connection(connection), name="preStop call")
        self._beginning.add(task)
        task.add_done_callback(self._on_connection_begun)

    async def _begin_connection(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(self, connection)

    def _on_connection_begun(self, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.warning("a call could not be read", error=repr(error))
        self._changed()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open[handler] = None

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._open.pop(handler, None)
        self._changed()

    @contextmanager
    def mark_holding(self, handler: web.RequestHandler) -> Iterator[None]:
        """Count this connection as holding a pod inside the block."""
        self._held.add(handler)
        try:
            yield
        finally:
            self._held.discard(handler)

    def _made_room(self) -> bool:
        """Break the oldest connection that holds no pod; False if there is none."""
        idle = next((one for one in self._open if one not in self._held), None)
        if idle is None:
            return False
        del self._open[idle]
        if idle.transport is not None:
            idle.transport.abort()
        return True

    async def close_connections(self) -> None:
        """Break all open connections; held calls get END_SECONDS."""
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)
        self.pre_shutdown()
        await self.shutdown(END_SECONDS)


class CallForwarder:
    """The open calls of one node. An async context manager.

    Args:
        socket: on which the agent, of whichever version, listens.
        away_seconds: how long a call waits for an agent that is not running.
    """

    def __init__(self, socket: Path, away_seconds: float) -> None:
        self._socket = socket
        self._away_seconds = away_seconds
        self._changed: list[Callable[[], None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._listener: ListeningSocket | None = None
        self._calls: _OpenCalls | None = None
        self._is_leaving = False
        self._shares = OpenCallLimits()
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
        """See `draining.DrainablePart`: open connections count, because their requests may not have been read yet."""
        number = len(self._calls) if self._calls is not None else 0
        return [f"{number} preStop call{'s' if number > 1 else ''}"] if number else []

    def subscribe_to_changes(self, changed: Callable[[], None]) -> None:
        """See `draining.DrainablePart`."""
        self._changed.append(changed)

    @property
    def inode(self) -> int:
        """Inode of the listening socket while `serve` runs."""
        assert self._listener is not None  # noqa: S101  # see above
        return self._listener.inode

    @asynccontextmanager
    async def serve(self, port: int, address: str = "127.0.0.1") -> AsyncIterator[int]:
        """Serve as long as the block lasts; yield the port, on which another `prestop-proxy` may listen too."""
        listener = self._listener = await _bind(port, address)
        calls = self._calls = _OpenCalls(self._respond, self._notify_changed)
        listener.serve(calls.begin_call)
        try:
            yield listener.port
        finally:
            listener.close()
            for look in self._looks:
                look.cancel()
            await asyncio.gather(*self._looks, return_exceptions=True)
            await calls.close_connections()

    async def leave_to_successor(self) -> None:
        """Leave new calls to another process that listens on the port; if there is none, check again at each call."""
        self._is_leaving = True
        async with self._turn:
            if self._listener is not None and self._listener.is_open and await self._listener.is_shared():
                await self._listener.close_when_drained()

    async def close(self) -> None:
        """Accept no more calls, whether another process does or not; calls already accepted stay held."""
        async with self._turn:
            if self._listener is not None:
                await self._listener.close_when_drained()

    def _start_successor_check(self) -> None:
        """Leave if another process listens now; no call waits for this check or breaks because the check fails."""
        if self._is_leaving and not self._looks and self._listener is not None and self._listener.is_open:
            look = asyncio.create_task(self.leave_to_successor(), name="look for a successor")
            self._looks.add(look)
            look.add_done_callback(self._on_successor_checked)

    def _on_successor_checked(self, look: asyncio.Task[None]) -> None:
        self._looks.discard(look)
        if not look.cancelled() and (error := look.exception()) is not None:
            log.warning("calls could not be left to a successor", error=repr(error))

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        if request.path.startswith(_HOLD):
            response = await self._hold(request)
        elif request.path == "/healthz":
            response = web.Response(text="ok\n")
        else:
            response = web.Response(status=404)
        response.force_close()  # a connection carries one call
        return response

    async def _hold(self, request: web.BaseRequest) -> web.Response:
        self._start_successor_check()
        try:
            with self._shares.count_call(_token_of(request.path)) as may:
                if not may:
                    return web.Response(status=429, text="more calls of this pod are open than it has containers\n")
                assert self._calls is not None  # noqa: S101  # it has read this one
                with self._calls.mark_holding(request.protocol):
                    response = await self._forward_to_agent(request)
                if response.status == 404:
                    await asyncio.sleep(UNKNOWN_SECONDS)
                return response
        except TimeoutError:
            log.warning("no agent came: the kubelet proceeds", seconds=self._away_seconds)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)

    async def _forward_to_agent(self, request: web.BaseRequest) -> web.Response:
        """Call each successive agent until one answers.

        Raises:
            TimeoutError: no agent listened for `away_seconds`.
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
                log.warning("the agent has gone while it held a pod: retried with the next one", error=repr(error))
                away_since = clock()
                await asyncio.sleep(PAUSE_SECONDS)  # the agent may still be running and break every call

    def _notify_changed(self) -> None:
        for changed in self._changed:
            changed()


def _token_of(path: str) -> str:
    """Return the token of `/v1/hold/TOKEN/CONTAINER`."""
    return path.removeprefix(_HOLD).partition("/")[0]


async def _bind(port: int, address: str) -> ListeningSocket:
    while True:
        try:
            return ListeningSocket(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            log.warning("port is taken, trying again", port=port)
            await asyncio.sleep(TAKEN_PAUSE_SECONDS)
