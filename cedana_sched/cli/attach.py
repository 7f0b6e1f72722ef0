"""`cedana-sched attach`: a job's terminal on the user's own, across preemptions and restores.

Output is read from the job's file, from where the last `attach` left off; input goes to the keeper of the current run
(`local.runs.terminal_protocol`). Between two runs, what is typed waits for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cedana_sched.cli import arguments, job_tables
from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.cli.detach_keys import DEFAULT, DetachFilter, parse_detach_keys
from cedana_sched.cli.errors import PermissionRefusedError
from cedana_sched.cli.local_terminal import raw_terminal, window_size, write_fully
from cedana_sched.cli.logs import Tail
from cedana_sched.local.runs import terminal_protocol
from cedana_sched.model.errors import RefusedError

if TYPE_CHECKING:
    import socket

    from cedana_sched.local.client import EngineClient
    from cedana_sched.local.views import JobView

_MOST_SHOWN_BYTES = 64 << 10
"""Of output from before the first `attach`."""
_MOST_TYPED_BYTES = 64 << 10
"""Typed input that may wait for the next run; more is not read from the user's terminal."""
_STDIN = 0


def register(app: typer.Typer) -> None:
    command(app)(attach)


async def attach(
    session: CommandContext,
    job: arguments.Job,
    *,
    detach_keys: Annotated[str, typer.Option(metavar="KEYS", help="Leave the job alone with these keys.")] = DEFAULT,
) -> None:
    """Show a job's terminal (submit --tty) on this one, until it ends or the detach keys are typed."""
    keys = parse_detach_keys(detach_keys)
    async with session.client() as client:
        found = await client.job(job)
        _require_terminal(found)
        attachment = Attachment(client, found, session.state_directory, keys)
        with raw_terminal(_STDIN):
            ended = await attachment.run()
    if ended is None:
        session.output.print_note(f"\ndetached; {found.name} continues: cedana-sched attach {found.name}")
    elif ended.phase != "Succeeded":
        from cedana_sched.cli.job_watch import job_failed_error

        raise job_failed_error(ended)


def _require_terminal(job: JobView) -> None:
    if not job.tty:
        remedy = f"submit it with --tty; 'cedana-sched logs -f {job.name}' follows its output"
        raise RefusedError("job", job.name, "has no terminal", remedy=remedy)
    if job.phase in job_tables.ENDED:
        remedy = f"see 'cedana-sched logs {job.uid}'"
        raise RefusedError("job", job.name, f"has ended already: {job.phase}", remedy=remedy)


class ShownPosition:
    """How much of a job's output its attached terminals have shown, kept beside the output over all runs."""

    def __init__(self, state_directory: Path, job: JobView) -> None:
        self._file = state_directory / "output" / job.uid / "shown"
        self._output = Path(job.stdout)

    def load(self) -> int:
        """Return the position in bytes; without a record, one that shows the end of the output."""
        size = self._output.stat().st_size if self._output.exists() else 0
        try:
            return min(int(self._file.read_text()), size)
        except (FileNotFoundError, ValueError):
            return max(0, size - _MOST_SHOWN_BYTES)

    def save(self, position: int) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_name(f".{self._file.name}")
        temporary.write_text(str(position))
        temporary.replace(self._file)


class Attachment:
    """One `attach`, from its beginning to the end of the job or the detach keys."""

    def __init__(self, client: EngineClient, job: JobView, state_directory: Path, keys: bytes) -> None:
        self._client = client
        self._job = job
        self._runs = state_directory / "runs"
        self._filter = DetachFilter(keys)
        self._shown = ShownPosition(state_directory, job)
        self._tail = Tail(Path(job.stdout), self._shown.load())
        self._typed = b""
        """What no run's terminal has acknowledged yet."""
        self._in_flight = 0
        """Bytes that were sent to the present run, and are not acknowledged yet."""
        self._has_room = asyncio.Event()
        self._has_new_size = False
        self._changed = asyncio.Event()
        """Set when there may be something to send."""
        self._leaves = asyncio.Event()

    async def run(self) -> JobView | None:
        """Return the job that has ended; None if the user has detached.

        Raises:
            RefusedError: another terminal is attached, or the job's run has none.
            PermissionRefusedError: the job's terminal or output belongs to another user.
            EngineUnreachableError: the engine stopped.
        """
        tasks = (
            asyncio.create_task(self._follow_runs(), name="runs"),
            asyncio.create_task(self._wait_until_left(), name="detach keys"),
            asyncio.create_task(self._copy_output(), name="output"),
            asyncio.create_task(self._read_input(), name="input"),
        )
        try:
            with self._handled_signals():
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                return next(task.result() for task in tasks if task in ended)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._show_new_output()  # from between the last event and the end
            self._shown.save(self._tail.offset)

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        handlers = {
            signal.SIGWINCH: self._note_new_size,
            signal.SIGTERM: self._leaves.set,
            signal.SIGHUP: self._leaves.set,
        }
        loop = asyncio.get_running_loop()
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _note_new_size(self) -> None:
        self._has_new_size = True
        self._changed.set()

    async def _wait_until_left(self) -> None:
        await self._leaves.wait()

    # -- output

    async def _copy_output(self) -> None:
        from asyncinotify import Inotify, Mask

        path = Path(self._job.stdout)
        with Inotify() as changes:
            # watch the directory, because the file may not exist before the job starts
            changes.add_watch(path.parent, Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO)
            self._show_new_output()
            async for change in changes:
                if change.name is not None and change.name.name == path.name:
                    self._show_new_output()

    def _show_new_output(self) -> None:
        for block in self._tail.read_new_blocks():
            write_fully(block)

    # -- input

    async def _read_input(self) -> None:
        """Collect what is typed; never ends by itself."""
        while data := await self._read_standard_input():
            typed, leaves = self._filter.filter(data)
            self._typed += typed
            self._changed.set()
            if leaves:
                self._leaves.set()
            while len(self._typed) > _MOST_TYPED_BYTES:
                self._has_room.clear()
                await self._has_room.wait()
        await asyncio.Event().wait()  # the end of the input ends nothing: the output continues

    async def _read_standard_input(self) -> bytes:
        from cedana_sched.local.runs.readable_descriptors import wait_any_readable

        with contextlib.suppress(PermissionError):  # a file is always readable, and cannot be waited for
            await wait_any_readable(_STDIN)
        try:
            return os.read(_STDIN, _MOST_TYPED_BYTES)
        except OSError:  # the user's terminal was hung up
            self._leaves.set()
            return b""

    # -- runs

    async def _follow_runs(self) -> JobView:
        """Serve the job's runs one after another; return the job once it has ended."""
        from cedana_sched.cli.job_watch import wait_until

        served: set[str] = set()
        job = self._job
        while True:
            job = await wait_until(
                self._client, job, lambda now: now.phase in job_tables.ENDED or bool(_running(now) - served)
            )
            if job.phase in job_tables.ENDED:
                return job
            for run in _running(job) - served:
                served.add(run)
                await self._serve(run)

    async def _serve(self, run: str) -> None:
        """Send input and sizes to a run until it ends."""
        connection = self._connect(run)
        if connection is None:
            return
        with connection:
            loop = asyncio.get_running_loop()
            if await loop.sock_recv(connection, 1) == terminal_protocol.BUSY:
                remedy = "detach the other one first"
                raise RefusedError("job", self._job.name, "is attached to another terminal", remedy=remedy)
            self._has_new_size, self._in_flight = True, 0
            self._changed.set()
            sending = asyncio.create_task(self._send(connection), name=f"input of {run}")
            try:
                with contextlib.suppress(ConnectionError):  # the run has ended
                    while message := await loop.sock_recv(connection, 64):
                        self._take_acknowledgement(terminal_protocol.decode_count(message))
            finally:
                sending.cancel()
                await asyncio.wait((sending,))

    def _connect(self, run: str) -> socket.socket | None:
        """Return a connection to a run's keeper; None if the run has ended.

        Raises:
            RefusedError: the run has no terminal.
            PermissionRefusedError: this user may not use it.
        """
        try:
            return terminal_protocol.connect(self._runs / run)
        except PermissionError as error:
            raise PermissionRefusedError(
                f"the terminal of {self._job.name} cannot be used by this user", remedy="run as the engine's user"
            ) from error
        except ConnectionRefusedError:
            return None
        except FileNotFoundError as error:
            if not (self._runs / run).exists():
                return None
            remedy = "its snapshot was taken without one; cancel it, and submit it under a new id"
            raise RefusedError("job", self._job.name, "was restored without a terminal", remedy=remedy) from error

    async def _send(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):  # the run has ended
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._has_new_size:
                    self._has_new_size = False
                    if size := window_size(_STDIN):
                        await loop.sock_sendall(connection, terminal_protocol.encode_size(*size))
                if self._typed and not self._in_flight:
                    message = self._typed[: terminal_protocol.MOST_INPUT]
                    self._in_flight = len(message)
                    await loop.sock_sendall(connection, terminal_protocol.encode_input(message))

    def _take_acknowledgement(self, count: int) -> None:
        self._in_flight -= count
        self._typed = self._typed[count:]
        self._has_room.set()
        self._changed.set()


def _running(job: JobView) -> set[str]:
    """Return the uids of the job's runs that have started and not ended: one at most."""
    return {run.uid for run in job.runs if run.started_at is not None and run.ended_at is None}
