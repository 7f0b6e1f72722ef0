"""A TCP connection that a test can cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHUNK = 1 << 16


class Cable:
    """Leads from `address` to a server. `cut` breaks all connections; those made while it is `down` break at once.

    Args:
        host: of the server.
        port: of the server.
    """

    def __init__(self, host: str, port: int) -> None:
        self.address = ""
        self.down = False
        self._host = host
        self._port = port
        self._ends: set[asyncio.StreamWriter] = set()

    @classmethod
    @asynccontextmanager
    async def to(cls, address: str) -> AsyncIterator[Cable]:
        """One to `host:port`."""
        host, _, port = address.rpartition(":")
        cable = cls(host, int(port))
        server = await asyncio.start_server(cable._connect, "127.0.0.1", 0)
        async with server:
            cable.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            try:
                yield cable
            finally:
                cable.cut()

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_connection(self._host, self._port)
        ends = {writer, to_server}
        self._ends |= ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_carry(reader, to_server))
                group.create_task(_carry(from_server, writer))
        finally:
            self._ends -= ends


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(_CHUNK):
            sink.write(chunk)
            await sink.drain()
    except ConnectionError:  # it was cut
        pass
    finally:
        sink.transport.abort()
