"""The processes in the images of a snapshot, for `snapshots inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cedana_sched.cli import units
from cedana_sched.cli.output import Table, plain_table
from cedana_sched.model.errors import NotFoundError

if TYPE_CHECKING:
    from cedana_sched.snapshot.snapshot_contents import Contents, Process
    from cedana_sched.store.reader import SnapshotReader

UNKNOWN = "(processes are not shown: 'cedana-sched doctor --prepare' makes the CRIU that can read them)"


def read_processes_in_snapshot(reader: SnapshotReader) -> Contents | None:
    """Return the processes of a snapshot; None on a machine without CRIU, which decodes the images.

    Raises:
        SnapshotError: an image cannot be decoded.
        IntegrityError: an image is corrupt.
    """
    from cedana_sched.snapshot.criu_toolchain import find_toolchain
    from cedana_sched.snapshot.snapshot_contents import inspect_snapshot

    toolchain = find_toolchain()
    if toolchain is None:
        return None

    def read(name: str) -> bytes:
        try:
            return reader.read(name)
        except NotFoundError as error:
            raise KeyError(name) from error

    return inspect_snapshot(toolchain, read)


def contents_text(contents: Contents | None) -> str:
    """Format processes as a table, with the namespaces of their own."""
    if contents is None:
        return UNKNOWN
    if not contents.processes:
        return "no processes"
    table = Table(("PID", "PARENT", "COMMAND", "THREADS", "MEMORY", "LARGEST", "FILES", "SOCKETS"))
    table.rows.extend(_process_row(process) for process in contents.processes)
    namespaces = ", ".join(contents.own_namespaces) or "none"
    return f"{plain_table(table)}\n\nNamespaces of its own: {namespaces}"


def _process_row(process: Process) -> tuple[str, ...]:
    largest = process.memory[0] if process.memory else None
    sockets = sum(file.kind.endswith("socket") for file in process.files)
    return (
        str(process.pid),
        str(process.parent),
        process.command,
        str(process.threads),
        units.format_size(process.memory_bytes),
        largest.name if largest else units.ABSENT,
        str(len(process.files) - sockets),
        str(sockets),
    )
