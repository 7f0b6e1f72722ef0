"""Truncation of files that grew after the snapshot to the length that the processes expect.

After a checkpoint that left the job running, its files have grown. CRIU refuses such a file (`bad size`), rightly: the
restored processes would write the same data a second time. So `remove_sizes` takes the sizes of files that are open for
writing out of the images, and CRIU opens them. Before the first instruction of the restored processes, and after all
else has succeeded, `truncate_grown_files` truncates what they hold to these sizes: through their own descriptors,
because a name may lead to a file of root's by now. A file that has become shorter cannot be repaired.

Files that are open to append (logs) are left as they are: other processes may append to them as well. The caller names
the job's own output files, which are truncated to the end of the job's last write; CRIU records no length for these.

Data in the middle of a file that were overwritten since cannot be recovered: a program that changes files in place
needs a snapshot that stops it (or a database's own recovery).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler.file_change_rules import printable_path
from cedana_sched.runtime_handler.held_file_truncation import Truncation, truncate_held_files
from cedana_sched.runtime_handler.held_processes import HeldProcesses, RestoredProcessesError
from cedana_sched.runtime_handler.outside_files import OutsideFile, outside_files_of
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Entry, Images, files_found_by_name, folder_reader

FILE_NAME = "recorded-sizes.json"
"""Has the removed sizes beside the images, for further attempts of the restore."""
_IMAGE = "files.img"


class TruncatedFile(msgspec.Struct, frozen=True):
    """One truncated file."""

    path: str
    was_bytes: int
    is_bytes: int


def remove_sizes(toolchain: Toolchain, images: Path, outputs: Collection[Path] = ()) -> dict[str, int]:
    """Remove the sizes of files that are open for writing from staged images; return these, by path.

    Args:
        toolchain: for decoding the images.
        images: the directory of the images.
        outputs: the job's own output files, which only the job writes.

    Raises:
        SnapshotError: an image cannot be decoded.
    """
    decoded = Images(toolchain, folder_reader(images))
    content = decoded.read_image(_IMAGE)
    if content is None:
        return {}
    files = files_found_by_name(decoded, content)
    written = [file for file in files if _is_open_for_writing(file)]
    sizes = _keep_sizes(images / FILE_NAME, _sizes_of(written, {str(path) for path in outputs}))
    may_grow = sizes.keys() | {file["name"] for file in written if _is_appended(file)}
    for file in files:
        if file["name"] in may_grow:  # also where it is mapped, or open for reading only
            file.pop("size", None)
    decoded.replace(images / _IMAGE, content)
    return sizes


def _keep_sizes(kept: Path, sizes: dict[str, int]) -> dict[str, int]:
    """Return the sizes that the first attempt has kept, or keep these."""
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=dict[str, int])
    temporary = kept.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(sizes))
    temporary.replace(kept)
    return sizes


def _sizes_of(files: Iterable[Entry], outputs: set[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for file in files:
        name = file["name"]
        if _is_appended(file) and name not in outputs:
            continue
        if "size" in file:
            sizes[name] = max(sizes.get(name, 0), file["size"])
        elif name in outputs and file["pos"]:  # 0: the job had not written by this descriptor yet
            sizes[name] = max(sizes.get(name, 0), file["pos"])
    return sizes


def _is_open_for_writing(file: Entry) -> bool:
    return bool(file["flags"] & os.O_ACCMODE)  # O_RDONLY is 0


def _is_appended(file: Entry) -> bool:
    return bool(file["flags"] & os.O_APPEND)


def truncate_grown_files(held: HeldProcesses, sizes: dict[str, int]) -> list[TruncatedFile]:
    """Truncate the files of held processes that are longer than these sizes.

    Raises:
        RestoreError: a file is shorter, and nothing has been changed; or it is not open in its place any more.
        OSError, ValueError: the files cannot be inspected or truncated.
    """
    if not sizes:
        return []
    open_now = outside_files_of(held.processes, sizes.__contains__, most_bytes=sys.maxsize)  # it is not encoded
    files = [file for file in open_now.files if file.is_written]
    for file in files:
        if file.size < sizes[file.path]:
            name = printable_path(file.path)
            raise RestoreError(
                f"{name} has {file.size} bytes now, and had {sizes[file.path]} when the snapshot was taken",
                remedy="put the file back as it was, or restore an earlier snapshot",
            )
    grown = [file for file in files if file.size > sizes[file.path]]
    processes = held.by_namespace_pid()
    try:
        truncate_held_files(held, [_truncation_of(file, processes, sizes[file.path]) for file in grown])
    except RestoredProcessesError as error:
        raise RestoreError(str(error), remedy="restore it again") from error
    return [TruncatedFile(file.path, file.size, sizes[file.path]) for file in grown]


def _truncation_of(file: OutsideFile, processes: Mapping[int, int], size: int) -> Truncation:
    """Return the truncation of a file through the first process that can write to it."""
    holder = next(one for one in file.holders if one.is_writable)
    change = f"{printable_path(file.path)} has grown ({size} bytes at the snapshot, {file.size} now)"
    return Truncation(processes.get(holder.pid), holder, file.path, (file.device, file.inode), size, change)
