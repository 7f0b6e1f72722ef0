"""The messages between a run's terminal keeper and the client that is attached: over a unix socket, one at a time.

Only input and sizes pass here; output is in the job's file, in order, also if no client is attached. The keeper
acknowledges the input that the terminal has taken. What is not acknowledged when the run ends, the client sends to the
next run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

SOCKET_NAME = "terminal.sock"
MOST_INPUT = 4096
"""Bytes of input in one message."""
_INPUT, _SIZE = b"i", b"s"
ACCEPTED, BUSY = b"a", b"b"
"""The keeper's first message: the client is attached, or another one is."""
_SIZES, _COUNT = struct.Struct("!HH"), struct.Struct("!I")


def listen(run_directory: Path) -> socket.socket:
    """Return a socket that listens in the directory of a run."""
    listener = _new_socket()
    with _short_path(run_directory) as path:
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
        Path(path).chmod(0o600)
    listener.listen()
    return listener


def connect(run_directory: Path) -> socket.socket:
    """Return a non-blocking connection to the keeper of a run.

    Raises:
        OSError: the run has no keeper, or has ended.
    """
    connection = _new_socket()
    try:
        with _short_path(run_directory) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    connection.settimeout(0)
    return connection


def encode_input(data: bytes) -> bytes:
    """Return a message with at most `MOST_INPUT` bytes of input."""
    return _INPUT + data[:MOST_INPUT]


def encode_size(rows: int, columns: int) -> bytes:
    return _SIZE + _SIZES.pack(rows, columns)


def encode_count(count: int) -> bytes:
    """Return the acknowledgement of `count` bytes of input."""
    return _COUNT.pack(count)


def decode_count(message: bytes) -> int:
    return int(_COUNT.unpack(message)[0])


def decode(message: bytes) -> bytes | tuple[int, int]:
    """Return the input, or rows and columns, of a client's message.

    Raises:
        ValueError: it is neither.
    """
    kind, body = message[:1], message[1:]
    if kind == _INPUT:
        return body
    if kind == _SIZE and len(body) == _SIZES.size:
        rows, columns = _SIZES.unpack(body)
        return rows, columns
    raise ValueError(f"a terminal's client sent {message[:16]!r}")


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """Yield a path of the socket that fits into a unix socket's address (107 bytes), however deep the directory is."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)
