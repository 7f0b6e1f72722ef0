"""Truncation of files that grew after the snapshot to the length that the processes expect.

After a checkpoint that left the job running, its files have grown. CRIU refuses such a file (`bad size`), rightly: the
restored processes would write the same data a second time. A file that is open for writing and has grown is truncated
to its recorded length. One that has become shorter, or is gone, cannot be repaired.

CRIU records no length for append-only files (logs), since other processes may append to them as well. The caller names
the job's own output files, which are truncated to the end of the job's last write.

Data in the middle of a file that were overwritten since cannot be recovered: a program that changes files in place
needs a snapshot that stops it (or a database's own recovery).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from cedana_sched.model.errors import RestoreError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Entry, Images, folder_reader


class TruncatedFile(msgspec.Struct, frozen=True):
    """One truncated file."""

    path: Path
    was_bytes: int
    is_bytes: int


def truncate_grown_files(toolchain: Toolchain, images: Path, outputs: Collection[Path] = ()) -> list[TruncatedFile]:
    """Truncate files that have grown since the snapshot in `images`.

    Args:
        toolchain: for decoding the images.
        images: the directory of the images.
        outputs: the job's own output files, which only the job writes.

    Raises:
        RestoreError: a file is shorter than it was; nothing has been changed.
    """
    wanted = _recorded_lengths(Images(toolchain, folder_reader(images)), {str(path) for path in outputs})
    actual = {path: path.stat().st_size for path in wanted if path.is_file()}
    for path, size in actual.items():
        if size < wanted[path]:
            raise RestoreError(
                f"{path} has {size} bytes now, and had {wanted[path]} when the snapshot was taken",
                remedy="put the file back as it was, or restore an earlier snapshot",
            )
    grown = [TruncatedFile(path, size, wanted[path]) for path, size in actual.items() if size > wanted[path]]
    for file in grown:
        os.truncate(file.path, file.is_bytes)
    return grown


def _recorded_lengths(images: Images, outputs: set[str]) -> dict[Path, int]:
    remapped = {entry["orig_id"] for entry in images.read_entries("remap-fpath.img")}  # deleted: not found by path
    lengths: dict[Path, int] = {}
    for entry in images.read_entries("files.img"):
        file = entry.get("reg")
        if not file or file["id"] in remapped or not _is_open_for_writing(file):
            continue
        path = Path(file["name"])
        if "size" in file:
            lengths[path] = max(lengths.get(path, 0), file["size"])
        elif file["name"] in outputs and file["pos"]:  # 0: the job had not written by this descriptor yet
            lengths[path] = max(lengths.get(path, 0), file["pos"])
    return lengths


def _is_open_for_writing(file: Entry) -> bool:
    return bool(file["flags"] & os.O_ACCMODE)  # O_RDONLY is 0
