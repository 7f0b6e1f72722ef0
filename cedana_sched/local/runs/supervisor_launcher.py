"""Start of supervisor processes: the engine's side of `supervisor_forkserver`."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

from cedana_sched.local.runs.readable_descriptors import wait_any_readable
from cedana_sched.local.runs.supervisor_forkserver import PATH_BYTES
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.snapshot.cgroups import Cgroup, CgroupError
from cedana_sched.snapshot.launch import interpreter_environment


class SupervisorError(CedanaSchedError):
    """No supervisor could be started."""


class SupervisorLauncher:
    """The client of one forkserver process, which is started on first use, and restarted if it was killed.

    The forkserver and all supervisors are in `group`, outside the engine's own control group, so that they survive a
    service manager that kills the engine's group.
    """

    def __init__(self, group: Cgroup) -> None:
        self._group = group
        self._forkserver: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._turn = asyncio.Lock()

    async def start_forkserver(self) -> None:
        """Start the forkserver, so that the first run does not wait for it.

        Raises:
            SupervisorError: the control group cannot be created.
        """
        async with self._turn:
            self._ensure_forkserver()

    async def start(self, directory: Path) -> int:
        """Start the supervisor of a run; return its pidfd, which the caller closes.

        Raises:
            SupervisorError: the forkserver failed, and so did a restarted one.
        """
        path = os.fsencode(directory)
        if len(path) > PATH_BYTES:
            raise SupervisorError(
                "the path of the run's directory is too long", remedy="choose a shorter state directory"
            )
        async with self._turn:
            for _ in range(2):
                pidfd = await self._request_supervisor(path)
                if pidfd is not None:
                    return pidfd
        raise SupervisorError("no supervisor could be started", remedy="see the engine's log and free memory")

    async def close(self) -> None:
        """Stop the forkserver; the supervisors keep running."""
        async with self._turn:
            await asyncio.to_thread(self._stop_forkserver)

    async def _request_supervisor(self, path: bytes) -> int | None:
        """Request a supervisor from the forkserver; return its pidfd, or None if the forkserver was killed."""
        connection = self._ensure_forkserver()
        try:
            connection.send(path)
            await wait_any_readable(connection.fileno())
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        except (BrokenPipeError, ConnectionResetError):
            descriptors = []
        if descriptors:
            return descriptors[0]
        await asyncio.to_thread(self._stop_forkserver)
        return None

    def _ensure_forkserver(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-P", "-m", "cedana_sched.local.runs.supervisor_forkserver"]
            with theirs:
                self._forkserver = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL,
                    start_new_session=True, env=interpreter_environment(),
                )  # fmt: skip
            self._socket = ours
            self._move_to_group(self._forkserver.pid)
        return self._socket

    def _move_to_group(self, pid: int) -> None:
        try:
            self._group.create_and_join(pid)
        except (CgroupError, OSError) as error:
            self._stop_forkserver()
            raise SupervisorError(
                f"supervisors get no control group: {error}", remedy="run the engine as root"
            ) from error

    def _stop_forkserver(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._forkserver is not None:
            self._forkserver.wait()
            self._forkserver = None
