"""The listening socket of preStop calls, and how to close it without breaking a connection.

Several processes may listen on the same address (SO_REUSEPORT). Linux assigns each new connection to one of them and
queues the connection on that socket before the process accepts it. Closing such a socket resets its queued and
half-open connections; they are not handed to the other sockets (`inet_csk_listen_stop` in Linux'
inet_connection_sock.c), unless a sysctl of the whole node enables that. So new connections are first steered to another
process. Where the kernel permits, a socket filter then drops any SYN that still arrives here: the client retransmits it
after a second, and then reaches another process or is refused. Handshakes that began earlier complete meanwhile and are
accepted.
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
"""A handshake on the loopback device takes less, unless the processor is busy; a longer one shows in the socket
table."""
LONGEST_HANDSHAKE_SECONDS = 0.5
"""The handshakes of a successor show as well, so some may always be in flight."""
NO_ROOM_PAUSE_SECONDS = 1.0
"""Pause before the next accept when the process has too many open files."""
STEERING_SECONDS = 0.2
"""Timeout of a probe connection of our own; another process may have no room for it."""

_LISTENING, _HALF_OPEN = "0A", "03"
"""State codes in the kernel's socket table."""
_SO_ATTACH_FILTER, _SO_ATTACH_REUSEPORT_CBPF = 26, 51
"""Of asm-generic/socket.h; Python does not define them."""
_Program = tuple[tuple[int, int, int, int], ...]
"""A classic BPF program (`filter.rst` in Linux' documentation)."""
_NO_BEGINNINGS: _Program = (
    (0x30, 0, 0, 13),  # load the byte with a TCP segment's flags
    (0x54, 0, 0, 0x12),  # mask SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone
    (0x06, 0, 0, 0),  # is dropped
    (0x06, 0, 0, 0xFFFF_FFFF),  # all else passes
)


class ListeningSocket:
    """A listening socket: it listens from its construction on, and accepts once `serve` is called.

    Args:
        address: an IPv4 address.
        port: 0 takes any free port.

    Raises:
        OSError: a process that does not share the port has it.
    """

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.create_server((address, port), reuse_port=True, backlog=QUEUE)
        self._socket.setblocking(False)  # noqa: FBT003  # the name of the method says which
        self._address: tuple[str, int] = self._socket.getsockname()
        self._loop = asyncio.get_running_loop()
        self._take: Callable[[socket.socket], None] | None = None
        self._own: set[tuple[str, int]] = set()
        """Source addresses of our own probe connections; they show which socket gets new connections."""

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def inode(self) -> int:
        """Inode by which the kernel's socket table names this socket."""
        return os.fstat(self._socket.fileno()).st_ino

    @property
    def is_open(self) -> bool:
        """Whether the socket can still receive connections."""
        return self._socket.fileno() >= 0

    def serve(self, take: Callable[[socket.socket], None]) -> None:
        """Pass each accepted connection to `take`."""
        self._take = take
        self._loop.add_reader(self._socket, self._on_readable)

    async def is_shared(self) -> bool:
        """Return whether another process in this network namespace listens on the address as well."""
        return (await self._socket_states()).count(_LISTENING) > 1

    async def close_when_drained(self) -> None:
        """Close the socket after all connections whose handshake has begun are accepted."""
        if not self.is_open:
            return
        await self._steer_away()
        self._attach_filter(_SO_ATTACH_FILTER, _NO_BEGINNINGS)
        until = self._loop.time() + LONGEST_HANDSHAKE_SECONDS
        await asyncio.sleep(HANDSHAKE_SECONDS)
        while _HALF_OPEN in await self._socket_states() and self._loop.time() < until:  # noqa: ASYNC110  # no event shows it
            await asyncio.sleep(HANDSHAKE_SECONDS)
        await asyncio.sleep(HANDSHAKE_SECONDS)  # from half open into the queue
        while not self._accept():  # noqa: ASYNC110  # nor this
            await asyncio.sleep(NO_ROOM_PAUSE_SECONDS)
        self.close()  # no await since the queue was empty

    def close(self) -> None:
        """Close the socket at once and break queued connections."""
        if self.is_open:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    async def _steer_away(self) -> None:
        """Steer new connections to another process, if one listens.

        The kernel indexes the listening sockets by numbers that it does not publish, so each number is tried. A wrong
        number is harmless: a connection that is steered to us begins a second later.
        """
        number = (await self._socket_states()).count(_LISTENING)
        for one in range(number if number > 1 else 0):
            if (
                not self._attach_filter(_SO_ATTACH_REUSEPORT_CBPF, ((0x06, 0, 0, one),))
                or not await self._is_receiving_new_connections()
            ):
                return

    async def _is_receiving_new_connections(self) -> bool:
        """Return whether a new connection arrives at this socket."""
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

    def _attach_filter(self, option: int, program: _Program) -> bool:
        """Attach a filter; return whether the kernel accepted it.

        The kernel demands a capability for some options, which our pod lacks (6.18: for _SO_ATTACH_FILTER).
        """
        steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
        of_program = struct.pack("HP", len(program), ctypes.addressof(steps))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, option, of_program)
        except OSError as error:
            log.info("calls that begin while this process leaves may break", error=str(error), option=option)
            return False
        return True

    def _on_readable(self) -> None:
        if not self._accept():
            self._loop.remove_reader(self._socket)
            self._loop.call_later(NO_ROOM_PAUSE_SECONDS, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self.is_open:
            self._loop.add_reader(self._socket, self._on_readable)

    def _accept(self) -> bool:
        """Accept all queued connections; False if this process has too many open files now."""
        while True:
            try:
                connection, caller = self._socket.accept()
            except BlockingIOError:
                return True
            except ConnectionAbortedError:  # the client has closed the connection
                continue
            except OSError as error:
                log.warning("no call can be accepted now", error=str(error))
                return False
            if caller in self._own:
                self._own.discard(caller)
                connection.close()
                continue
            connection.setblocking(False)  # noqa: FBT003  # the name of the method says which
            assert self._take is not None  # noqa: S101  # `serve` was called
            self._take(connection)

    async def _socket_states(self) -> list[str]:
        """Return the states of all sockets on the address (`proc_net_tcp.txt` in Linux' documentation)."""
        host, port = self._address
        number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
        return await asyncio.to_thread(_states_at, f"{number:08X}:{port:04X}")


def _states_at(address: str) -> list[str]:
    with Path("/proc/net/tcp").open() as table:
        rows = (line.split() for line in table)
        return [row[3] for row in rows if row[1] == address]
