"""A door in front of a server: a proxy on loopback that holds requests, or lets nobody through, when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
import re
from types import TracebackType
from typing import Self

_READ_BYTES = 64 << 10


class Gate:
    """Forwards TCP connections to `upstream_port`; `port` is its own. An async context manager."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = upstream_port
        self._held: re.Pattern[bytes] | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.reached = asyncio.Event()
        """Set when a request is being held."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self, requests: bytes) -> None:
        """From now on hold every connection on which a client sends what this regular expression matches."""
        self.reached.clear()
        self._held = re.compile(requests)
        self._open.clear()

    def release(self) -> None:
        """Let everything go on."""
        self._held = None
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", self._upstream)
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(reader, back, watched=True))
                    both.create_task(self._pump(there, writer, watched=False))
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, watched: bool) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(_READ_BYTES):
                    if watched and self._held is not None and self._held.search(data):
                        self.reached.set()
                        await self._open.wait()
                    target.write(data)
                    await target.drain()
        finally:
            target.close()
