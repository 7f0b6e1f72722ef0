"""The keeper of a run's terminal: a process that reads the terminal's output and writes its input.

A child of the run's supervisor, outside of the job's control groups, so that it outlives the engine and is neither
frozen nor saved with the job. It works with a duplicate of the master (see `snapshot.job_terminal`), appends all output
to the job's file, and passes on the input of the one client that is attached (see `terminal_protocol`).

Nothing is lost or repeated by a snapshot:

* Output: what the frozen processes have written is read before CRIU looks. While CRIU is at work nothing is read: what
  waits at the master is then in the snapshot, and CRIU writes it back. It is read if the processes run on, and not if
  they are killed.
* Input: none is passed on while the processes are frozen. The client keeps what was not acknowledged.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from cedana_sched.local.runs import terminal_protocol
from cedana_sched.snapshot.freezer import is_frozen
from cedana_sched.snapshot.job_terminal import set_window_size

_BLOCK_BYTES = 1 << 16
_HELD_MILLISECONDS = 10
"""Between two looks at frozen processes with something to pass on: neither a v1 freezer nor a tracer gives notice."""
_DISK_SECONDS = 1.0
_SIGKILL = 1 << (signal.SIGKILL - 1)


def start_keeper(master: int, listener: socket.socket, output: int, init: int, freezer: Path) -> int:
    """Start the keeper of a job's terminal; return its PID. Only for a single-threaded process.

    Args:
        master: the duplicate of the terminal's master.
        listener: the socket for clients.
        output: the job's file, open for appending.
        init: PID 1 of the job, as this process sees it.
        freezer: the job's control group.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        Path("/proc/self/comm").write_text("cedana-tty")  # the name in `ps` and `top`
        _close_all_but(0, 1, 2, master, listener.fileno(), output)
        TerminalKeeper(master, listener, output, init, freezer).keep()
        status = 0
    except BaseException:  # noqa: BLE001  # no exception may return into the supervisor
        traceback.print_exc()
    finally:
        os._exit(status)


class TerminalKeeper:
    """One terminal, from the start of its run to the end of the last process that has it open."""

    def __init__(self, master: int, listener: socket.socket, output: int, init: int, freezer: Path) -> None:
        self._master = master
        self._listener = listener
        self._output = output
        self._status = Path(f"/proc/{init}/status")
        self._freezer = freezer
        self._client: socket.socket | None = None
        self._input = b""
        self._is_traced = False
        """Whether CRIU was at work when last looked, and the processes have not run since."""
        self._waits_for_processes = False
        os.set_blocking(master, False)

    def keep(self) -> None:
        """Pass on output and input until the terminal is hung up."""
        while True:
            ready = self._wait()
            self._waits_for_processes = False
            if self._client is not None and (events := ready.get(self._client.fileno(), 0)):
                self._serve_client(self._client, events)
            if self._listener.fileno() in ready:  # after the client, who may just have gone
                self._admit_client()
            if self._input:
                self._pass_input_on()
            if (events := ready.get(self._master, 0)) and not self._pass_output_on(events):
                return

    def _wait(self) -> dict[int, int]:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        if self._client is not None:
            poll.register(self._client, 0 if self._input else select.POLLIN)  # its end is reported in any case
        wanted = 0 if self._is_traced else select.POLLIN
        if self._input and not self._waits_for_processes:
            wanted |= select.POLLOUT
        poll.register(self._master, wanted)  # a hang-up is reported in any case
        return dict(poll.poll(_HELD_MILLISECONDS if self._waits_for_processes or self._is_traced else None))

    def _pass_output_on(self, events: int) -> bool:
        """Append what waits at the master to the job's file; return whether more may come."""
        if self._is_traced and events & (select.POLLHUP | select.POLLERR):
            return False  # killed after a dump: what waits is in the snapshot
        if self._look_for_tracer():
            return True
        try:
            data = os.read(self._master, _BLOCK_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno == errno.EIO:  # no process has the other end open
                return False
            raise
        self._write_to_file(data)
        return bool(data)

    def _write_to_file(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._output, data) :]
            except OSError as error:  # a full disk: the job waits as it would for any reader
                print(f"the terminal's output cannot be written: {error}", file=sys.stderr)
                time.sleep(_DISK_SECONDS)

    def _pass_input_on(self) -> None:
        if self._look_for_tracer() or self._is_stopped_or_dying():
            self._waits_for_processes = True
            return
        try:
            count = os.write(self._master, self._input)
        except BlockingIOError:
            return  # no program reads: the wait is for POLLOUT
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return
        self._input = self._input[count:]
        if self._client is not None:
            with suppress(OSError):  # the client has gone
                self._client.send(terminal_protocol.encode_count(count))

    def _look_for_tracer(self) -> bool:
        """Return whether CRIU is at work on the processes, or has just been and they are still frozen."""
        if _read_status(self._status).get("TracerPid", "0") != "0":
            self._is_traced = True
        elif self._is_traced and not self._is_stopped_or_dying():
            self._is_traced = False
        return self._is_traced

    def _is_stopped_or_dying(self) -> bool:
        """Return whether the processes execute nothing: frozen, or thawed only to die (see `freezer.kill`)."""
        if is_frozen(self._freezer):
            return True
        status = _read_status(self._status)
        pending = int(status.get("ShdPnd", "0"), 16) | int(status.get("SigPnd", "0"), 16)
        return not status or "VmSize" not in status or bool(pending & _SIGKILL)

    def _admit_client(self) -> None:
        connection, _ = self._listener.accept()
        is_free = self._client is None
        with suppress(OSError):  # it has gone already
            connection.send(terminal_protocol.ACCEPTED if is_free else terminal_protocol.BUSY)
        if is_free:
            self._client = connection
        else:
            connection.close()

    def _serve_client(self, client: socket.socket, events: int) -> None:
        message = b""
        if events & select.POLLIN:
            with suppress(OSError):  # it has gone, as it has without a message
                message = client.recv(terminal_protocol.MOST_INPUT + 1)
        try:
            content = terminal_protocol.decode(message)
        except ValueError as error:
            if message:
                print(error, file=sys.stderr)
            client.close()
            self._client = None
            return
        if isinstance(content, bytes):
            self._input = content
        else:
            set_window_size(self._master, *content)


def _read_status(status: Path) -> dict[str, str]:
    """Return the fields of a process's status (proc_pid_status(5)); none if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = status.read_text(errors="replace").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {}


def _close_all_but(*kept: int) -> None:
    """Close all other descriptors: above all the lock of the run, which the supervisor holds as long as it lives."""
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor not in kept:
            with suppress(OSError):  # of the listing itself
                os.close(descriptor)
