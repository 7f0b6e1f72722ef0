"""Threads and a child process that count, each in files of its own kind: `program.py STEPS`.

* every thread appends its numbers to `thread-N.log` and, under a lock, to `shared.log`;
* it also writes its number at its place in `slots.bin` (seek and write);
* it feeds a file that has no name any more, from which the last line's digest is read back at the end;
* a forked child counts in anonymous shared memory and sends its numbers through a pipe;
* a file lock is held from beginning to end.

Writes `summary.json` last.
"""

# ruff: noqa: SIM115 - these files stay open as long as the program runs: that is what is tried here

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import struct
import sys
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO

THREADS = 4
PAUSE_SECONDS = 0.004
_COUNTER = struct.Struct("<Q")


class Counting:
    """What the threads share."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.lock = threading.Lock()
        self.never = threading.Event()
        self.shared = Path("shared.log").open("a", buffering=1)
        self.slots = Path("slots.bin").open("w+b", buffering=0)
        self.unlinked: list[BinaryIO] = [tempfile.TemporaryFile(dir=".", buffering=0) for _ in range(THREADS)]

    def count(self, index: int) -> None:
        with Path(f"thread-{index}.log").open("a", buffering=1) as log:
            for step in range(1, self.steps + 1):
                log.write(f"{step}\n")
                self.unlinked[index].write(_COUNTER.pack(step * (index + 1)))
                with self.lock:
                    self.shared.write(f"{index} {step}\n")
                    self.slots.seek(index * _COUNTER.size)
                    self.slots.write(_COUNTER.pack(step))
                self.never.wait(PAUSE_SECONDS)

    def unlinked_digest(self) -> str:
        whole = hashlib.sha256()
        for file in self.unlinked:
            file.seek(0)
            whole.update(file.read())
        return whole.hexdigest()


def count_in_child(memory: mmap.mmap, pipe: int, steps: int) -> None:
    """The child: every number goes into the shared page first, then into the pipe."""
    for step in range(1, steps + 1):
        memory[: _COUNTER.size] = _COUNTER.pack(step)
        os.write(pipe, _COUNTER.pack(step))
        threading.Event().wait(PAUSE_SECONDS)
    os._exit(0)


def collect(pipe: int) -> None:
    """Log what the child sends, until it closes its end."""
    with os.fdopen(pipe, "rb") as source, Path("child.log").open("a", buffering=1) as log:
        while record := source.read(_COUNTER.size):
            log.write(f"{_COUNTER.unpack(record)[0]}\n")


def is_locked(path: Path) -> bool:
    """Say whether another opening of the file is refused the lock that this program holds."""
    with path.open("w") as second:
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def main() -> None:
    steps = int(sys.argv[1])
    lock_file = Path("lock").open("w")
    fcntl.flock(lock_file, fcntl.LOCK_EX)
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        count_in_child(memory, writing, steps)
    os.close(writing)
    state = Counting(steps)
    threads = [threading.Thread(target=state.count, args=(index,)) for index in range(THREADS)]
    threads.append(threading.Thread(target=collect, args=(reading,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    summary = {
        "child_status": os.waitpid(child, 0)[1],
        "shared_memory": _COUNTER.unpack(memory[: _COUNTER.size])[0],
        "unlinked_files": state.unlinked_digest(),
        "slots": hashlib.sha256(Path("slots.bin").read_bytes()).hexdigest(),
        "still_locked": is_locked(Path("lock")),
    }
    Path("summary.json").write_text(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
