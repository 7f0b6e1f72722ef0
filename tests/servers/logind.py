"""systemd-logind as far as the kubelet's graceful shutdown uses it, and the message bus between them, in one program.

It runs on a node of the test cluster: standard library only. SIGUSR1 announces a shutdown, SIGUSR2 its cancellation.
On its standard output it says what happens: `inhibited`, and `released` once the kubelet has ended the node's pods.

Source: "D-Bus Specification", the manual page of `org.freedesktop.login1`.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
from pathlib import Path
from typing import Final

SOCKET: Final = Path("/run/dbus/system_bus_socket")
OBJECT: Final = "/org/freedesktop/login1"
MANAGER: Final = "org.freedesktop.login1.Manager"
DELAY_MICROSECONDS: Final = 3_600_000_000
"""`InhibitDelayMaxUSec`: more than any test's kubelet wants, so that it configures nothing."""

_RETURN, _SIGNAL = 2, 4
_PATH, _INTERFACE, _MEMBER, _REPLY_SERIAL, _SENDER, _SIGNATURE, _DESCRIPTORS = 1, 2, 3, 5, 7, 8, 9
_NO_REPLY: Final = 1


def _padded(data: bytes, size: int) -> bytes:
    return data + bytes(-len(data) % size)


def _string(text: str) -> bytes:
    return struct.pack("<I", len(text)) + text.encode() + b"\0"


def _signature(text: str) -> bytes:
    return bytes([len(text)]) + text.encode() + b"\0"


def _field(code: int, kind: str, value: str | int) -> bytes:
    head = bytes([code]) + _signature(kind)
    if kind == "g":
        return head + _signature(str(value))
    data = struct.pack("<I", value) if isinstance(value, int) else _string(value)
    return _padded(head, 4) + data


class Connection:
    """One client of the bus."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.is_authenticated = False
        self._read = b""
        self._serial = 0

    def receive(self) -> bool:
        """Answer what has come; False: the client is gone."""
        data = self.peer.recv(65536)
        self._read += data
        while self._answer_next():
            pass
        return bool(data)

    def announce(self, *, is_shutting_down: bool) -> None:
        fields = [
            _field(_PATH, "o", OBJECT),
            _field(_INTERFACE, "s", MANAGER),
            _field(_MEMBER, "s", "PrepareForShutdown"),
        ]
        self._send(_SIGNAL, fields, "b", struct.pack("<I", is_shutting_down))

    def _answer_next(self) -> bool:
        if not self.is_authenticated:
            line, end, rest = self._read.lstrip(b"\0").partition(b"\r\n")
            if not end:
                return False
            self._read = rest
            self._authenticate(line.split())
            return True
        if len(self._read) < 16:
            return False
        flags, length, serial, size = struct.unpack("<xxBxIII", self._read[:16])
        return self._answer_message(flags, serial, 16 + size + -size % 8, length)

    def _authenticate(self, words: list[bytes]) -> None:
        if words[0] == b"BEGIN":
            self.is_authenticated = True
        elif words[0] == b"NEGOTIATE_UNIX_FD":
            self.peer.sendall(b"AGREE_UNIX_FD\r\n")
        elif words[:2] == [b"AUTH", b"EXTERNAL"]:
            self.peer.sendall(b"OK " + b"0" * 32 + b"\r\n")
        else:
            self.peer.sendall(b"REJECTED EXTERNAL\r\n")

    def _answer_message(self, flags: int, serial: int, header: int, body: int) -> bool:
        if len(self._read) < header + body:
            return False
        message, self._read = self._read[: header + body], self._read[header + body :]
        if flags & _NO_REPLY:
            return True
        called = next((name for name in (b"Hello", b"Get", b"Inhibit") if b"\0" + name + b"\0" in message), b"")
        if called == b"Hello":
            self._reply(serial, "s", _string(":1.1"))
        elif called == b"Get":
            self._reply(serial, "v", _padded(_signature("t"), 8) + struct.pack("<Q", DELAY_MICROSECONDS))
        elif called == b"Inhibit":
            self._reply_with_lock(serial)
        else:  # a rule for signals
            self._reply(serial)
        return True

    def _reply_with_lock(self, serial: int) -> None:
        """The lock is held until the client has closed the descriptor."""
        ours, theirs = os.pipe()
        self._reply(serial, "h", struct.pack("<I", 0), [theirs])
        os.close(theirs)
        LOCKS.register(ours, selectors.EVENT_READ, "lock")
        print("inhibited", flush=True)

    def _reply(self, serial: int, kind: str = "", body: bytes = b"", descriptors: list[int] | None = None) -> None:
        self._send(_RETURN, [_field(_REPLY_SERIAL, "u", serial)], kind, body, descriptors or [])

    def _send(
        self, message: int, fields: list[bytes], kind: str, body: bytes, descriptors: list[int] | None = None
    ) -> None:
        self._serial += 1
        fields = [*fields, _field(_SENDER, "s", "org.freedesktop.login1")]
        if kind:
            fields.append(_field(_SIGNATURE, "g", kind))
        if descriptors:
            fields.append(_field(_DESCRIPTORS, "u", len(descriptors)))
        header = b""
        for field in fields:
            header = _padded(header, 8) + field
        start = struct.pack("<cBBBIII", b"l", message, _NO_REPLY, 1, len(body), self._serial, len(header))
        socket.send_fds(self.peer, [_padded(start + header, 8) + body], descriptors or [])


LOCKS: Final = selectors.DefaultSelector()
"""Everything that this program waits for."""


def serve() -> None:
    """Serve until killed."""
    SOCKET.parent.mkdir(exist_ok=True)
    SOCKET.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(SOCKET))
    listener.listen()
    LOCKS.register(listener, selectors.EVENT_READ, "listener")
    read, written = os.pipe()
    os.set_blocking(written, False)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(written)
    LOCKS.register(read, selectors.EVENT_READ, "signals")
    connections: set[Connection] = set()
    while True:
        for key, _ in LOCKS.select():
            if key.data == "listener":
                connection = Connection(listener.accept()[0])
                connections.add(connection)
                LOCKS.register(connection.peer, selectors.EVENT_READ, connection)
            elif key.data == "signals":
                for received in os.read(read, 64):
                    for connection in connections:
                        if connection.is_authenticated:
                            connection.announce(is_shutting_down=received == signal.SIGUSR1)
            elif key.data == "lock":
                LOCKS.unregister(key.fileobj)
                os.close(key.fd)
                print("released", flush=True)
            elif not key.data.receive():
                LOCKS.unregister(key.fileobj)
                connections.discard(key.data)
                key.data.peer.close()


if __name__ == "__main__":
    serve()
