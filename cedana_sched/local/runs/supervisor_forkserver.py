"""Forkserver of supervisors.

`python -m cedana_sched.local.runs.supervisor_forkserver`, with a unix socket as its standard input. The forkserver has
imported a supervisor's modules, so a fork takes milliseconds and shares most of its memory with the others. For each
run directory received, the forkserver sends a pidfd of the new supervisor. The forkserver exits when the socket is
closed, that is with its engine; the supervisors keep running.
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

from cedana_sched.local.runs import run_supervisor

PATH_BYTES = 4096


def main() -> None:
    engine = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, _reap)
    gc.collect()
    gc.freeze()  # objects that exist now are never collected, so their memory stays shared
    while path := engine.recv(PATH_BYTES):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # no reaping before the child has a pidfd
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
        run_supervisor.main(path)
        status = 0
    except BaseException:  # noqa: BLE001  # no exception may return into the forkserver's loop
        traceback.print_exc()
    finally:
        os._exit(status)


def _reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


if __name__ == "__main__":
    main()
