"""A Redis server and its clients in one tree: `program.py CLIENTS NUMBERS`.

Every client has a TCP connection of its own. For each of its numbers it increments one counter that all share,
logs the answer in `acknowledged-CLIENT.log`, and appends the number to a list of its own. At the end what the
server holds is written to `stored.json`, and the server is asked to stop.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

PAUSE_SECONDS = 0.004
_READY = "Ready to accept connections"

Reply = int | str | list["Reply"] | None


class Client:
    """Redis' own protocol over one connection: a request, then its answer."""

    def __init__(self, port: int) -> None:
        self._file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def ask(self, *words: object) -> Reply:
        """Send one command and return the answer.

        Raises:
            RuntimeError: when the server answers with an error, or not at all.
        """
        parts = [str(word).encode() for word in words]
        self._file.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        self._file.flush()
        return self._answer()

    def _answer(self) -> Reply:
        line = self._file.readline()
        kind, rest = line[:1], line[1:].strip()
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest.decode()
        if kind == b"$":
            return self._file.read(int(rest) + 2)[:-2].decode() if rest != b"-1" else None
        if kind == b"*":
            return [self._answer() for _ in range(int(rest))]
        raise RuntimeError(f"the server answered {line!r}")


def free_port() -> int:
    """Return a port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(port: int) -> subprocess.Popen[str]:
    """Start Redis and return when it says that it is ready; what it prints goes on to `server.log`."""
    options = ("--bind", "127.0.0.1", "--port", str(port), "--appendonly", "yes", "--save", "", "--dir", ".")
    server = subprocess.Popen(("redis-server", *options), stdout=subprocess.PIPE, text=True)
    ready = threading.Event()
    assert server.stdout is not None  # noqa: S101 - asked for above
    threading.Thread(target=_keep_log, args=(server.stdout, ready), daemon=True).start()
    ready.wait()
    return server


def _keep_log(output: IO[str], ready: threading.Event) -> None:
    with Path("server.log").open("w", buffering=1) as log:
        for line in output:
            log.write(line)
            if _READY in line:
                ready.set()
    ready.set()


def load(port: int, index: int, numbers: int) -> None:
    """One client's work."""
    client = Client(port)
    with Path(f"acknowledged-{index}.log").open("w", buffering=1) as log:
        for number in range(1, numbers + 1):
            log.write(f"{client.ask('INCR', 'counter')}\n")
            client.ask("RPUSH", f"ledger-{index}", number)
            time.sleep(PAUSE_SECONDS)


def main() -> int:
    clients, numbers = int(sys.argv[1]), int(sys.argv[2])
    port = free_port()
    server = start_server(port)
    threads = [threading.Thread(target=load, args=(port, index, numbers)) for index in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = Client(port)
    stored = {f"ledger-{index}": last.ask("LRANGE", f"ledger-{index}", 0, -1) for index in range(clients)}
    stored["counter"] = last.ask("GET", "counter")
    Path("stored.json").write_text(json.dumps(stored))
    server.terminate()
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
