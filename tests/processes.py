"""Processes of this machine, as tests look for them: each may end, or become a zombie, while it is looked at.

The only place of the tests that walks processes (`tools/check_code.py` sees to it): a search that somebody else's
ending process can break fails by luck.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

LEAVES_ITS_FIRST_THREAD = """
import ctypes, platform, threading, time

def count():
    with open("/proc/self/stat") as stat:
        while stat.read().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
            stat.seek(0)
    number = 0
    while True:
        number += 1
        print(number, flush=True)
        time.sleep(0.01)

threading.Thread(target=count).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit, of this thread alone
"""
"""A program that runs on, and counts, when its first thread has ended, as after `pthread_exit` in `main`."""


@contextlib.contextmanager
def without_first_thread() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose first thread has ended: /proc shows it as a zombie, and it runs on."""
    process = subprocess.Popen([sys.executable, "-c", LEAVES_ITS_FIRST_THREAD], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        try:
            assert output.readline() == b"1\n"
            yield process
        finally:
            process.kill()
            process.wait()


def all_processes() -> Iterator[psutil.Process]:
    """Every process of this machine."""
    yield from psutil.process_iter()


def family(pid: int) -> list[psutil.Process]:
    """A process and what descends from it; empty when it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def below(pid: int) -> list[psutil.Process]:
    """What descends from a process; empty when it has ended."""
    return family(pid)[1:]


def children() -> set[int]:
    """PIDs of this process's own children, zombies among them."""
    return {child.pid for child in psutil.Process().children()}


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; empty for the kernel's own, for a zombie and for what has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(process: psutil.Process) -> bool:
    """SIGKILL it; False when it had ended before."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def is_alive(pid: int) -> bool:
    """Whether it is more than an entry that its parent has not taken note of."""
    try:
        return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def naming(folder: Path) -> list[psutil.Process]:
    """Processes, but this one, that name the folder in their command line."""
    return [process for process in _others() if any(str(folder) in word for word in words_of(process))]


def using(folder: Path) -> list[psutil.Process]:
    """Processes, but this one, that name the folder in their command line, or have a file below it open."""
    return [
        process
        for process in _others()
        if any(str(folder) in word for word in words_of(process))
        or any(path.is_relative_to(folder) for path in _open_files(process.pid))
    ]


def _others() -> Iterator[psutil.Process]:
    own = psutil.Process()
    return (process for process in all_processes() if process != own)


def _open_files(pid: int) -> Iterator[Path]:
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return  # it has ended
    for link in links:
        try:
            yield link.readlink()
        except OSError:
            continue  # closed meanwhile
