"""Forks supervisors: `python -m cedana_sched.local.runs.nursery`, with a unix socket as its standard input.

It has imported what a supervisor needs, so a new one is there within milliseconds and shares most of its memory with
the others. For each run directory it is sent it answers with a pidfd of the new supervisor, then waits for the next;
it ends when the socket does, that is with its engine. The supervisors stay.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cedana_sched.local.runs import shim

PATH_BYTES = 4096


def main() -> None:
    engine = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, _reap)
    gc.collect()
    gc.freeze()  # what is here now is never collected, so its memory stays shared
    while path := engine.recv(PATH_BYTES):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # it must not be reaped before it has a pidfd
        pid = os.fork()
        if pid == 0:
            engine.close()
            _become_supervisor(Path(os.fsdecode(path)))
        pidfd = os.pidfd_open(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        socket.send_fds(engine, [b"."], [pidfd])
        os.close(pidfd)


def _become_supervisor(path: Path) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        words = os.open(path / "shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor, number in ((null, 0), (words, 1), (words, 2)):
            os.dup2(descriptor, number)
        shim.main(path)
        status = 0
    except BaseException:  # noqa: BLE001  # whatever it is, it must not return into the nursery's loop
        traceback.print_exc()
    finally:
        os._exit(status)


def _reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


if __name__ == "__main__":
    main()
