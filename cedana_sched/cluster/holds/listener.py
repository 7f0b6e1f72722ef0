"""The socket that preStop calls come to, and how it is left without breaking one; the keeper of holds has it.

Several processes may listen at the same address (SO_REUSEPORT). Linux gives each new connection to one of them, and
queues it there before anybody accepts it. Who closes such a socket resets what is queued, and what is half open: it is
not handed to the others (`inet_csk_listen_stop` in Linux' inet_connection_sock.c), unless a setting of the whole node
says so. So new connections are first steered to another process, and where the kernel lets us, a filter has it drop
what begins one here all the same: its sender repeats that after a second, and then reaches another process, or is
refused. What had begun before gets through meanwhile, and is taken.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

QUEUE = 128
HANDSHAKE_SECONDS = 0.02
"""One on the loopback device is over by then, but on a processor that others keep busy; that shows."""
LONGEST_HANDSHAKE_SECONDS = 0.5
"""Those of a successor show as well, so some may be on their way all the time."""
NO_ROOM_PAUSE_SECONDS = 1.0
"""Before more is accepted by a process that has too many files open."""
STEERING_SECONDS = 0.2
"""For a connection of our own; another process may have no room for it."""

_LISTENING, _HALF_OPEN = "0A", "03"
"""As the kernel's table of sockets shows them."""
_SO_ATTACH_FILTER, _SO_ATTACH_REUSEPORT_CBPF = 26, 51
"""Of asm-generic/socket.h; Python does not name them."""
_Program = tuple[tuple[int, int, int, int], ...]
"""Of Linux' socket filter (`filter.rst` in its documentation)."""
_NO_BEGINNINGS: _Program = (
    (0x30, 0, 0, 13),  # the byte with a TCP segment's flags
    (0x54, 0, 0, 0x12),  # SYN and ACK of it
    (0x15, 0, 1, 0x02),  # SYN alone
    (0x06, 0, 0, 0),  # is dropped
    (0x06, 0, 0, 0xFFFF_FFFF),  # all else is passed on
)


class Listener:
    """Listens from its beginning on, and accepts once `serve` is called.

    Args:
        address: of IPv4.
        port: 0 takes any that is free.

    Raises:
        OSError: somebody who does not share it has the port.
    """

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.create_server((address, port), reuse_port=True, backlog=QUEUE)
        self._socket.setblocking(False)  # noqa: FBT003  # the name of the method says which
        self._address: tuple[str, int] = self._socket.getsockname()
        self._loop = asyncio.get_running_loop()
        self._take: Callable[[socket.socket], None] | None = None
        self._own: set[tuple[str, int]] = set()
        """Where our own connections come from, by which we see who gets new ones."""

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def inode(self) -> int:
        """By which the kernel's table of sockets names it."""
        return os.fstat(self._socket.fileno()).st_ino

    @property
    def is_open(self) -> bool:
        """Whether anything can still come."""
        return self._socket.fileno() >= 0

    def serve(self, take: Callable[[socket.socket], None]) -> None:
        """Give each connection to `take`."""
        self._take = take
        self._loop.add_reader(self._socket, self._ready)

    async def is_shared(self) -> bool:
        """Whether another process in this network listens at the address as well."""
        return (await self._states()).count(_LISTENING) > 1

    async def leave(self) -> None:
        """Close it, after all whose connection has begun were taken."""
        if not self.is_open:
            return
        await self._steer_away()
        self._attach(_SO_ATTACH_FILTER, _NO_BEGINNINGS)
        until = self._loop.time() + LONGEST_HANDSHAKE_SECONDS
        await asyncio.sleep(HANDSHAKE_SECONDS)
        while _HALF_OPEN in await self._states() and self._loop.time() < until:  # noqa: ASYNC110  # no event shows it
            await asyncio.sleep(HANDSHAKE_SECONDS)
        await asyncio.sleep(HANDSHAKE_SECONDS)  # from half open into the queue
        while not self._accept():  # noqa: ASYNC110  # nor this
            await asyncio.sleep(NO_ROOM_PAUSE_SECONDS)
        self.close()  # nothing was awaited since the queue was empty

    def close(self) -> None:
        """Close it at once, and break what is queued."""
        if self.is_open:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    async def _steer_away(self) -> None:
        """Have another process get new connections, if there is one.

        The kernel knows those that listen by numbers that nobody is told, so they are tried. A wrong one does no harm:
        what is steered to us begins a second later.
        """
        number = (await self._states()).count(_LISTENING)
        for one in range(number if number > 1 else 0):
            if not self._attach(_SO_ATTACH_REUSEPORT_CBPF, ((0x06, 0, 0, one),)) or not await self._gets_new():
                return

    async def _gets_new(self) -> bool:
        """Whether a new connection comes to us."""
        with socket.socket() as probe:
            probe.setblocking(False)  # noqa: FBT003  # the name of the method says which
            probe.bind((self._address[0], 0))
            caller = probe.getsockname()
            self._own.add(caller)
            try:
                async with asyncio.timeout(STEERING_SECONDS):
                    await self._loop.sock_connect(probe, self._address)
            except (OSError, TimeoutError):
                return False
            self._accept()
            return caller not in self._own

    def _attach(self, option: int, program: _Program) -> bool:
        """Whether the kernel took it: some want a capability for it, which our pod has not (6.18 for the filter)."""
        steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
        of_program = struct.pack("HP", len(program), ctypes.addressof(steps))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, option, of_program)
        except OSError as error:
            log.info("calls that begin while this process leaves may break", why=str(error), option=option)
            return False
        return True

    def _ready(self) -> None:
        if not self._accept():
            self._loop.remove_reader(self._socket)
            self._loop.call_later(NO_ROOM_PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if self.is_open:
            self._loop.add_reader(self._socket, self._ready)

    def _accept(self) -> bool:
        """Take all that is queued; False where this process has no room for more now."""
        while True:
            try:
                connection, caller = self._socket.accept()
            except BlockingIOError:
                return True
            except ConnectionAbortedError:  # its caller has gone
                continue
            except OSError as error:
                log.warning("no call can be accepted now", why=str(error))
                return False
            if caller in self._own:
                self._own.discard(caller)
                connection.close()
                continue
            connection.setblocking(False)  # noqa: FBT003  # the name of the method says which
            assert self._take is not None  # noqa: S101  # `serve` was called
            self._take(connection)

    async def _states(self) -> list[str]:
        """Of all sockets that are at the address (`proc_net_tcp.txt` in Linux' documentation)."""
        host, port = self._address
        number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
        return await asyncio.to_thread(_states_at, f"{number:08X}:{port:04X}")


def _states_at(address: str) -> list[str]:
    with Path("/proc/net/tcp").open() as table:
        rows = (line.split() for line in table)
        return [row[3] for row in rows if row[1] == address]
