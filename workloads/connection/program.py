"""A sender and a receiver with unanswered records always under way: `program.py tcp|unix|pipe RECORDS`.

A record is its number, its payload and a checksum. The receiver verifies number and checksum, logs the number
in `received.log` and answers with it; the sender logs the answers in `answered.log`. The sender keeps a window of
records unanswered, so a snapshot at any moment finds bytes in the queues of the connection.
Writes `sent.digest` and `received.digest` at the end.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

PAYLOAD_BYTES = 1024
WINDOW = 32
PAUSE_SECONDS = 0.003
_HEADER = struct.Struct("<QI")
_ANSWER = struct.Struct("<Q")


@dataclass
class Duplex:
    """Two directions of one connection, as unbuffered files."""

    incoming: BinaryIO
    outgoing: BinaryIO


def payload(number: int) -> bytes:
    """Return bytes that only this record has."""
    return hashlib.sha512(_ANSWER.pack(number)).digest() * (PAYLOAD_BYTES // 64)


def receive(connection: Duplex, records: int) -> None:
    """Verify, log and answer every record.

    Raises:
        ValueError: when a record is damaged or not the next one.
    """
    whole = hashlib.sha256()
    with Path("received.log").open("a", buffering=1) as log:
        for expected in range(1, records + 1):
            number, checksum = _HEADER.unpack(connection.incoming.read(_HEADER.size))
            body = connection.incoming.read(PAYLOAD_BYTES)
            if number != expected or zlib.crc32(body) != checksum:
                raise ValueError(f"record {number} came in place of {expected}, or damaged")
            whole.update(body)
            log.write(f"{number}\n")
            connection.outgoing.write(_ANSWER.pack(number))
            connection.outgoing.flush()
            time.sleep(PAUSE_SECONDS)
    Path("received.digest").write_text(whole.hexdigest())


def send(connection: Duplex, records: int) -> None:
    """Send all records with at most `WINDOW` unanswered, and log the answers."""
    room = threading.Semaphore(WINDOW)
    answers = threading.Thread(target=_log_answers, args=(connection.incoming, records, room))
    answers.start()
    whole = hashlib.sha256()
    for number in range(1, records + 1):
        room.acquire()
        body = payload(number)
        whole.update(body)
        connection.outgoing.write(_HEADER.pack(number, zlib.crc32(body)) + body)
        connection.outgoing.flush()
    answers.join()
    Path("sent.digest").write_text(whole.hexdigest())


def _log_answers(incoming: BinaryIO, records: int, room: threading.Semaphore) -> None:
    with Path("answered.log").open("a", buffering=1) as log:
        for _ in range(records):
            log.write(f"{_ANSWER.unpack(incoming.read(_ANSWER.size))[0]}\n")
            room.release()


def over_socket(link: socket.socket) -> Duplex:
    return Duplex(link.makefile("rb"), link.makefile("wb"))


def run_sockets(family: socket.AddressFamily, records: int) -> int:
    """Listen, fork a receiver that accepts, connect to it and send."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0) if family == socket.AF_INET else "socket")
    listener.listen()
    receiver = os.fork()
    if receiver == 0:
        accepted, _ = listener.accept()
        receive(over_socket(accepted), records)
        return 0
    link = socket.socket(family, socket.SOCK_STREAM)
    link.connect(listener.getsockname())
    send(over_socket(link), records)
    return os.waitpid(receiver, 0)[1]


def run_pipes(records: int) -> int:
    """The same through two pipes."""
    there, back = os.pipe(), os.pipe()
    receiver = os.fork()
    incoming, outgoing = (there[0], back[1]) if receiver == 0 else (back[0], there[1])
    for unused in {*there, *back} - {incoming, outgoing}:
        os.close(unused)
    connection = Duplex(os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb"))
    if receiver == 0:
        receive(connection, records)
        return 0
    send(connection, records)
    return os.waitpid(receiver, 0)[1]


def main() -> int:
    transport, records = sys.argv[1], int(sys.argv[2])
    if transport == "pipe":
        return run_pipes(records)
    return run_sockets(socket.AF_INET if transport == "tcp" else socket.AF_UNIX, records)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
