"""`cedana-sched logs`: print a job's output across all restores; `-f` follows it until the job has ended."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cedana_sched.cli import arguments, job_tables
from cedana_sched.cli.command_context import CommandContext
from cedana_sched.cli.command_registration import command
from cedana_sched.cli.errors import PermissionRefusedError
from cedana_sched.cli.output import Output
from cedana_sched.model.errors import NotFoundError

if TYPE_CHECKING:
    from cedana_sched.local.client import EngineClient
    from cedana_sched.local.views import JobView

_BLOCK_BYTES = 1 << 16
Write = Callable[[bytes], None]


def register(app: typer.Typer) -> None:
    command(app)(logs)


async def logs(
    session: CommandContext,
    job: arguments.Job,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job has ended.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Standard error instead of standard output.")] = False,
) -> None:
    """Print what a job wrote to its standard output."""
    async with session.client() as client:
        found = await client.job(job)
        path = Path(found.stderr if stderr else found.stdout)
        write = _build_log_writer(session.output, found)
        _note_file_without_content(session.output, path)
        if follow and found.phase not in job_tables.ENDED:
            await _follow(client, found, path, write)
        else:
            _print_file(path, write, started=found.started_at is not None)


class Tail:
    """An incremental reader of a file's appended data; what does not exist yet, or is no regular file, is empty."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self.offset = offset
        """Bytes that have been read, or are not to be."""

    def read_new_blocks(self) -> Iterator[bytes]:
        """Yield data appended since the last call, in blocks of at most 64 KiB.

        Raises:
            PermissionRefusedError: this user may not read the file.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO waits for a writer
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise PermissionRefusedError(
                f"{self._path} cannot be read by this user", remedy="run as root, or as the user of the job"
            ) from error
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return
            file.seek(self.offset)
            while block := file.read(_BLOCK_BYTES):
                self.offset += len(block)
                yield block


def _note_file_without_content(output: Output, path: Path) -> None:
    if path.exists() and not path.is_file():
        output.print_note(f"{path} is no regular file: it keeps no output")


async def _follow(client: EngineClient, job: JobView, path: Path, write: Write) -> None:
    from asyncinotify import Inotify, Mask

    from cedana_sched.cli.job_watch import wait_until

    tail = Tail(path)
    with Inotify() as changes:
        # watch the directory, because the file may not exist before the job starts
        changes.add_watch(path.parent, Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO)

        async def copy_changes() -> None:
            async for change in changes:
                if change.name is not None and change.name.name == path.name:
                    _write_new_blocks(tail, write)

        _write_new_blocks(tail, write)
        copying = asyncio.create_task(copy_changes(), name=f"logs of {job.uid}")
        ended = asyncio.create_task(
            wait_until(client, job, lambda now: now.phase in job_tables.ENDED), name=f"end of {job.uid}"
        )
        try:
            await asyncio.wait((copying, ended), return_when=asyncio.FIRST_COMPLETED)
            for task in (copying, ended):
                if task.done():
                    task.result()
        finally:
            for task in (copying, ended):
                task.cancel()
            await asyncio.wait((copying, ended))
    _write_new_blocks(tail, write)  # data from between the last event and the job's end


def _print_file(path: Path, write: Write, *, started: bool) -> None:
    if started and not path.exists():
        raise NotFoundError("logs", str(path), "does not exist any more", remedy="the file was moved or removed")
    _write_new_blocks(Tail(path), write)


def _write_new_blocks(tail: Tail, write: Write) -> None:
    for block in tail.read_new_blocks():
        write(block)


def _build_log_writer(output: Output, job: JobView) -> Write:
    if output.is_json:

        def write_json(block: bytes) -> None:
            output.print_record({"job": job.uid, "text": block.decode(errors="replace")}, "")

        return write_json

    def write(block: bytes) -> None:
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()

    return write
