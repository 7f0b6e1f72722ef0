"""Takes the words of the pods outside the cluster's reach, so that no fault of the cluster can lose them.

Runs as a program of its own in the network namespace of the cluster's switch: `collector.py HOST PORT FILE`.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

_BUFFER_BYTES = 8 << 20


def collect(host: str, port: int, file: Path) -> None:
    """Append every datagram as a line: when it came, from where, and what it said; for ever."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as words, file.open("a", buffering=1) as lines:
        words.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        words.bind((host, port))
        print("ready", flush=True)
        while True:
            said, (address, _) = words.recvfrom(4096)
            lines.write(f"{time.time():.3f} {address} {said.decode()}\n")


if __name__ == "__main__":
    collect(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
