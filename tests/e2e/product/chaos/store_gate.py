"""A TCP gate before the S3 server, which a file tells how to behave. A program of its own, in the switch's network.

`store_gate.py HOST PORT UPSTREAM_PORT MODE_FILE`; the file holds one word:

    pass         nothing happens
    slow         both directions pass 256 KiB a second on each connection
    refuse       connections break, those that are open and those that are made
    full         every PUT and POST is answered 507, as a store does whose disk is full
    wrong        of every 16 KiB that the store sends, a byte is another one
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

_CHUNK = 16 << 10
_SLOW_BYTES_A_SECOND = 256 << 10
_HEAD_BYTES = 2048
"""Of an answer; its headers are left as they are, so that the bytes of an object are wrong and not HTTP itself."""
_FULL = b"HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Gate:
    """Forwards to `upstream`, as the mode says at the moment of each chunk."""

    def __init__(self, host: str, upstream: int, mode: Path) -> None:
        self._host = host
        self._upstream = upstream
        self._mode = mode

    def mode(self) -> str:
        return self._mode.read_text().strip()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        with contextlib.suppress(OSError):
            if self.mode() == "refuse":
                writer.transport.abort()
                return
            there, back = await asyncio.open_connection(self._host, self._upstream)
            upwards = asyncio.create_task(self._send(reader, back, writer))
            try:
                await self._receive(there, writer)
            finally:
                upwards.cancel()
                back.transport.abort()
                writer.transport.abort()
                await asyncio.gather(upwards, return_exceptions=True)

    async def _send(
        self, client: asyncio.StreamReader, store: asyncio.StreamWriter, answer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await client.read(_CHUNK):
                mode = self.mode()
                if mode == "refuse":
                    break
                if mode == "full" and data.startswith((b"PUT ", b"POST ")):
                    answer.write(_FULL)
                    await answer.drain()
                    break
                await self._forward(data, store, mode)
        store.transport.abort()

    async def _receive(self, store: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await store.read(_CHUNK):
            mode = self.mode()
            if mode == "refuse":
                return
            if mode == "wrong" and len(data) > _HEAD_BYTES:
                damaged = bytearray(data)
                damaged[-1] ^= 0xFF
                data = bytes(damaged)
            await self._forward(data, client, mode)

    async def _forward(self, data: bytes, target: asyncio.StreamWriter, mode: str) -> None:
        if mode == "slow":
            await asyncio.sleep(len(data) / _SLOW_BYTES_A_SECOND)
        target.write(data)
        await target.drain()


async def main(host: str, port: int, upstream: int, mode: Path) -> None:
    gate = Gate(host, upstream, mode)
    server = await asyncio.start_server(gate.serve, host, port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
