"""A door in front of a gRPC server that lets in whoever shows a certificate, as an ingress does."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_READ_BYTES = 64 << 10


@asynccontextmanager
async def tls_gate(upstream: str, certificate: Path, key: Path, clients: Path) -> AsyncIterator[str]:
    """Its address inside the block.

    Args:
        upstream: `host:port` of the server, which is not encrypted.
        certificate: its own (PEM).
        key: of its certificate.
        clients: who signs the certificates of those that are let in.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(clients))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    host, _, port = upstream.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(_pump(reader, back), _pump(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(_READ_BYTES):
            sink.write(chunk)
            await sink.drain()
    finally:
        sink.close()
