"""Record of the files outside a snapshot that its processes had open: how far they were when it was taken.

A snapshot has the memory of processes, and their positions in files, but not the files of volumes that outlive it. A
workload that runs on after its snapshot writes to such files, which are then ahead of the snapshot: restored from it,
the workload would write the same data a second time. CRIU records the size of open files, but not of append-only ones,
and no times. So this is recorded of frozen processes, of each regular file outside that one of them has open, or maps
shared and writable:

    OUTSIDE_FILES   {"version": 1, "problem": TEXT,
                     "files": [[PATH, DEVICE, INODE, SIZE, MTIME_NS, [[PID, PLACE, FLAGS, POSITION], …]], …]}

The time of the last status change (ctime) is not recorded, because the kubelet changes the group of files when it
mounts a volume. Deleted files are in the snapshot. A snapshot of an earlier version has no record: nothing is known of
its files, and they are not touched. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from cedana_sched.runtime_handler.held_processes import pid_in_namespace
from cedana_sched.runtime_handler.json_records import RecordFormat, excerpt, require_integer, require_list, require_text
from cedana_sched.runtime_handler.volume_file_comparison import ProcEntries, has_ended

OUTSIDE_FILES = "outside-files.json"
"""Beside CRIU's images of a container or job."""
VERSION = 1
MOST_FILES = 1 << 15
MOST_PLACES = 1 << 18
"""Descriptors and mappings inspected for that."""
MOST_BYTES = 4 << 20
"""Bytes of the records of all containers of a pod."""
_BYTES_BESIDE_PATH = 128
_BYTES_OF_HOLDER = 64
_MOST_PROBLEM = 500
"""Characters."""

_O_PATH = 0o10000000
_DESCRIPTORS, _MAPPINGS = "fd/", "map_files/"
_FORMAT = RecordFormat(OUTSIDE_FILES, "the record of the files outside the snapshot", VERSION)
_PLACE = re.compile(rf"{_DESCRIPTORS}[0-9]{{1,10}}|{_MAPPINGS}[0-9a-f]{{1,16}}")
_DELETED = " (deleted)"


FileKey = tuple[int, int]
"""Device and inode."""


class Holder(NamedTuple):
    """One place where a process holds a file."""

    pid: int
    """In the process's own PID namespace."""
    place: str
    """Below /proc/PID: `fd/3`, or `map_files/` and the first address of a mapping."""
    flags: int
    """Flags of open(2); O_RDWR for a shared writable mapping."""
    position: int
    """Offset in bytes of the next read or write; 0 for a mapping."""

    @property
    def is_writable(self) -> bool:
        """Whether the process can write through this place."""
        return is_writable(self.flags)


class OutsideFile(NamedTuple):
    """One file, as it was at the dump."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    holders: tuple[Holder, ...]

    @property
    def is_written(self) -> bool:
        """Whether the processes could write to it."""
        return any(holder.is_writable for holder in self.holders)

    @property
    def is_appended(self) -> bool:
        """Whether the processes could write to its end only."""
        writable = [holder for holder in self.holders if holder.is_writable]
        return bool(writable) and all(holder.flags & os.O_APPEND for holder in writable)

    @property
    def is_written_at_end(self) -> bool:
        """Whether the processes were writing it from its beginning to its end, and nothing else could write behind."""
        writable = [holder for holder in self.holders if holder.is_writable]
        return bool(writable) and all(
            holder.place.startswith(_DESCRIPTORS) and not holder.flags & os.O_APPEND and holder.position == self.size
            for holder in writable
        )


class OutsideFiles(NamedTuple):
    """Files outside one snapshot."""

    files: tuple[OutsideFile, ...] = ()
    problem: str = ""
    """Why the files are unknown; empty if they are known."""


def is_writable(flags: int) -> bool:
    """Return whether flags of open(2) permit to write; O_PATH opens nothing."""
    return flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR) and not flags & _O_PATH


def outside_files_of(
    processes: Iterable[int], is_outside: Callable[[str], bool], most_bytes: int = MOST_BYTES
) -> OutsideFiles:
    """Return the outside files of frozen processes; those that have ended have none.

    Args:
        processes: as this process sees them.
        is_outside: whether the file of a path, as the processes see it, is outside of the snapshot.
        most_bytes: bound of the result's `encode`.

    Raises:
        OSError: the state of a file or process cannot be read.
        ValueError: the processes have more than can be recorded.
    """
    found: dict[tuple[int, int, str], OutsideFile] = {}
    holders: dict[tuple[int, int, str], list[Holder]] = {}
    looked = written = 0
    for process in processes:
        try:
            pid, entries = pid_in_namespace(process), ProcEntries(process)
            for place in _places_of(process):
                looked += 1
                if looked > MOST_PLACES:
                    raise ValueError(f"they have more than {MOST_PLACES} descriptors and mappings")
                entry = entries.entry_path(place)
                path = os.readlink(entry)
                if not path.startswith("/") or path.endswith(_DELETED) or not is_outside(path):
                    continue
                seen = os.stat(entry)
                flags, position = open_state_of(process, place)
                if not stat.S_ISREG(seen.st_mode) or flags & _O_PATH:
                    continue
                key = (seen.st_dev, seen.st_ino, path)  # CRIU opens, and compares, each name of a file
                if key not in found:
                    found[key] = OutsideFile(path, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, ())
                    written += len(json.dumps(path)) + _BYTES_BESIDE_PATH
                holders.setdefault(key, []).append(Holder(pid, place, flags, position))
                written += _BYTES_OF_HOLDER
                if len(found) > MOST_FILES or written > most_bytes:
                    raise ValueError(f"they have more than {MOST_FILES} files, or {most_bytes} bytes of their names")
        except (FileNotFoundError, ProcessLookupError):
            if not has_ended(process):  # a file system may return that for an open file
                raise
    return OutsideFiles(tuple(file._replace(holders=tuple(holders[key])) for key, file in found.items()))


def unknown_outside_files(error: OSError | ValueError) -> OutsideFiles:
    """Return what is recorded of files that could not be recorded at the dump, because of this error."""
    return OutsideFiles(problem=f"when the snapshot was taken: {error}"[:_MOST_PROBLEM])


def encode(files: OutsideFiles) -> str:
    """Encode for `read_outside_files`. Names that are not valid text are preserved."""
    return _FORMAT.encode(files._asdict())


def read_outside_files(images: str) -> OutsideFiles | None:
    """Read the record beside these images; None if there is none: nothing is known of the files.

    Raises:
        OSError: the record cannot be read now.
        ValueError: the record is unreadable, or of another version.
    """
    return _FORMAT.read(images, _decode)


def _decode(content: dict[str, Any]) -> OutsideFiles:
    return OutsideFiles(tuple(map(_decode_file, require_list(content["files"]))), require_text(content["problem"]))


def _decode_file(written: Any) -> OutsideFile:
    path, device, inode, size, mtime_ns, holders = require_list(written, 6)
    return OutsideFile(
        require_text(path),
        require_integer(device),
        require_integer(inode),
        require_integer(size, least=0),
        require_integer(mtime_ns),
        tuple(map(_decode_holder, require_list(holders))),
    )


def _decode_holder(written: Any) -> Holder:
    pid, place, flags, position = require_list(written, 4)
    if not _PLACE.fullmatch(require_text(place)):
        raise TypeError(f"{excerpt(place)} is no place where a process holds a file")
    return Holder(require_integer(pid), place, require_integer(flags), require_integer(position))


def _places_of(process: int) -> Iterator[str]:
    """Yield the descriptors and shared writable mappings of a process.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has ended.
    """
    for number in os.listdir(f"/proc/{process}/fd"):
        yield f"{_DESCRIPTORS}{number}"
    with open(f"/proc/{process}/maps", "rb") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if fields[1][1:2] == b"w" and fields[1][3:4] == b"s" and fields[4] != b"0":
                yield f"{_MAPPINGS}{int(fields[0].split(b'-')[0], 16):x}"


def open_state_of(process: int, place: str) -> tuple[int, int]:
    """Return the flags with which a process has a file open, and its position there.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has ended.
    """
    if not place.startswith(_DESCRIPTORS):
        return os.O_RDWR, 0
    flags = position = 0
    with open(f"/proc/{process}/fdinfo/{place.removeprefix(_DESCRIPTORS)}", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("pos:"):
                position = int(line.split()[1])
            elif line.startswith("flags:"):
                flags = int(line.split()[1], 8)
                break
    return flags, position
