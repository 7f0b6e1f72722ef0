"""Comparison of the files that processes held at the dump with those that CRIU has opened for them.

CRIU reopens files by their names, as root. A tenant that can write to a volume, or the user of a job in a folder of the
host, may meanwhile have replaced a file, or put a link on its path, to a file that only root may open. So the agent
records, of frozen processes, each file outside of the snapshot that one has open, maps, executes or has as a directory.
Before their first instruction that is compared with what the restored processes hold:

    path        in their mount namespace: differs if a link was on the way
    mode        with the type of the file
    user        its owner
    group       the same, or one of the container's own: the kubelet gives volumes to the pod's `fsGroup`

Neither inodes nor contents are compared: volumes are copied, and others write to them.

    VOLUME_FILES    {"version": 1, "volumes": [PATH, …], "saved": [PATH, …],
                     "files": [[PID, PLACE, PATH, MODE, USER, GROUP], …]}

A container's volumes are its mounts from outside; those of a job are the host's whole file system, without the mounts
that are its own.

Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from cedana_sched.runtime_handler.held_processes import pid_in_namespace
from cedana_sched.runtime_handler.json_records import RecordFormat, excerpt, require_integer, require_list, require_text

VOLUME_FILES = "volume-files.json"
"""Beside CRIU's images of a container."""
VERSION = 1
MOST_FILES = 1 << 15
"""Files recorded of one container; a process may have 1024 by default."""
MOST_PLACES = 1 << 18
"""Descriptors inspected for that: those of pipes and sockets as well. More where more files are recorded."""
MOST_BYTES = 16 << 20
"""Bytes of the records of all containers of a pod: a path may have 4 KiB."""
_BYTES_BESIDE_PATH = 64
REMEDY = "put back the file that was there, with its owner and mode"

_CURRENT_TERMINAL, _CURRENT_TERMINAL_DEVICE = "/dev/tty", os.makedev(5, 0)
_DELETED = " (deleted)"
_DELETED_BY_CRIU = (".cr_link", ".ghost")
"""Suffixes of names under which CRIU opens files that were deleted before the dump, if the old name is taken."""
_DESCRIPTORS, _MAPPINGS = "fd/", "map_files/"
_SINGLE = {"cwd": "working directory", "root": "root directory", "exe": "program"}
_FORMAT = RecordFormat(VOLUME_FILES, "the record of the files of volumes", VERSION)
_PLACE = re.compile(rf"{_DESCRIPTORS}[0-9]{{1,10}}|{_MAPPINGS}[0-9a-f]{{1,16}}|{'|'.join(_SINGLE)}")


class VolumeFile(NamedTuple):
    """One file that a process holds in one place."""

    pid: int
    """In the process's own PID namespace."""
    place: str
    """Below /proc/PID: `fd/3`, `cwd`, `root`, `exe`, or `map_files/` and the first address of a mapping."""
    path: str
    mode: int
    user: int
    group: int


class VolumeFiles(NamedTuple):
    """Volume files of one container or job."""

    volumes: tuple[str, ...]
    """Their mount points, resolved like `path`."""
    files: tuple[VolumeFile, ...]
    saved: tuple[str, ...] = ()
    """Mount points below those whose files the snapshot contains, or which only the kernel fills."""


def is_within(path: str, volumes: Iterable[str], saved: Iterable[str] = ()) -> bool:
    """Return whether a file is in one of these volumes, or is itself a mount point, and in no saved mount."""
    name = path.removesuffix(_DELETED)
    return _is_below(name, volumes) and not _is_below(name, saved)


def _is_below(name: str, folders: Iterable[str]) -> bool:
    return any(name == folder or name.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def volume_files_of(
    processes: Collection[int],
    volumes: Collection[str],
    most_bytes: int = MOST_BYTES,
    saved: Collection[str] = (),
    most_files: int = MOST_FILES,
) -> VolumeFiles:
    """Return the volume files of frozen processes; those that have ended have none.

    Args:
        processes: as this process sees them.
        volumes: their mount points.
        most_bytes: bound of the result's `encode`.
        saved: mount points below those, whose files the snapshot contains.
        most_files: bound of the result's files.

    Raises:
        OSError: the state of a file or process cannot be read.
        ValueError: the processes have more than can be recorded.
    """
    found: list[VolumeFile] = []
    looked = written = 0
    most_places = MOST_PLACES * most_files // MOST_FILES
    mounts = _MountsOf(processes)
    for process in processes:
        try:
            for pid, place, entry in _held_places(process):
                looked += 1
                if looked > most_places or len(found) == most_files:
                    raise ValueError(f"they hold more than {most_files} files of volumes, or {most_places} of any kind")
                path = os.readlink(entry)
                if path == _CURRENT_TERMINAL and os.stat(entry).st_rdev == _CURRENT_TERMINAL_DEVICE:
                    continue  # restored as the terminal that it stands for
                if is_within(path, volumes, saved) and (not path.endswith(_DELETED) or mounts.contain(entry)):
                    written += len(json.dumps(path)) + _BYTES_BESIDE_PATH
                    if written > most_bytes:
                        raise ValueError(f"what they hold in volumes takes more than {most_bytes} bytes to write down")
                    found.append(_stat_volume_file(pid, place, entry))
        except (FileNotFoundError, ProcessLookupError):
            if not has_ended(process):  # a file system may return that for an open file
                raise
    return VolumeFiles(tuple(volumes), tuple(found), tuple(saved))


def encode(files: VolumeFiles) -> str:
    """Encode for `read_record`. Names that are not valid text are preserved."""
    return _FORMAT.encode(files._asdict())


def read_record(images: str) -> VolumeFiles | None:
    """Read the record beside these images; None if there is none.

    Raises:
        OSError: the record cannot be read now.
        ValueError: the record is unreadable, or of another version.
    """
    return _FORMAT.read(images, _decode)


def _decode(content: dict[str, Any]) -> VolumeFiles:
    return VolumeFiles(
        tuple(map(require_text, require_list(content["volumes"]))),
        tuple(map(_decode_file, require_list(content["files"]))),
        tuple(map(require_text, require_list(content.get("saved", [])))),
    )


def _decode_file(written: Any) -> VolumeFile:
    """Decode one file; its place must be one where processes hold files, and nothing else."""
    pid, place, path, *numbers = require_list(written, 6)
    if not _PLACE.fullmatch(require_text(place)):
        raise TypeError(f"{excerpt(place)} is no place where a process holds a file")
    return VolumeFile(require_integer(pid), place, require_text(path), *map(require_integer, numbers))


def objection_to_files(held: VolumeFiles | None, processes: Mapping[int, int], groups: Collection[int]) -> str | None:
    """Return why restored processes of a pod must not run with the files that CRIU opened, with a remedy.

    None if they may; see `find_changed_file`.
    """
    if held is None:
        return (
            "the snapshot does not say which files of volumes its processes held: it is of an earlier version, or they "
            f"were more than {MOST_FILES} (start it from its beginning)"
        )
    if (changed := find_changed_file(held, processes, groups)) is not None:
        return f"{changed} ({REMEDY}, or start the pod without the snapshot)"
    return None


def find_changed_file(held: VolumeFiles, processes: Mapping[int, int], groups: Collection[int] = ()) -> str | None:
    """Return, as a sentence, which file of restored processes is another one than at the dump; None if none is.

    Args:
        held: at the dump.
        processes: by their PIDs in their own namespace.
        groups: which files may belong to instead.

    Raises:
        OSError: the state of a file or process cannot be read.
    """
    entries: dict[int, ProcEntries] = {}
    for one in held.files:
        process = processes.get(one.pid)
        now = None
        if process is not None:
            with suppress(FileNotFoundError, ProcessLookupError):
                if process not in entries:
                    entries[process] = ProcEntries(process)
                now = _stat_volume_file(one.pid, one.place, entries[process].entry_path(one.place))
        if (differs := _describe_difference(one, now, groups)) is not None:
            return (
                f"{one.path}, which process {one.pid} holds as its {_place_text(one.place)}, is another file than when "
                f"the snapshot was taken: {differs}"
            )
    return None


def _describe_difference(held: VolumeFile, now: VolumeFile | None, groups: Collection[int]) -> str | None:
    if now is None:
        return "it was not restored"
    if not _is_same_path(held.path, now.path):
        return f"it leads to {now.path}"
    if now.mode != held.mode:
        return f"mode {held.mode:o} in the snapshot, {now.mode:o} now"
    if now.user != held.user:
        return f"owner {held.user} in the snapshot, {now.user} now"
    if now.group not in (held.group, *groups):
        return f"group {held.group} in the snapshot, {now.group} now"
    return None


def _is_same_path(held: str, now: str) -> bool:
    """Compare paths; a deleted file is restored from the snapshot, perhaps under a deleted name of CRIU's."""
    if now == held:
        return True
    name, other = held.removesuffix(_DELETED), now.removesuffix(_DELETED)
    is_deleted = held.endswith(_DELETED) and now.endswith(_DELETED)
    return is_deleted and other.startswith(name) and "/" not in other[len(name) :] and other.endswith(_DELETED_BY_CRIU)


def _place_text(place: str) -> str:
    if place.startswith(_DESCRIPTORS):
        return f"descriptor {place.removeprefix(_DESCRIPTORS)}"
    return _SINGLE.get(place, f"mapping at {place.removeprefix(_MAPPINGS)}")


def _held_places(process: int) -> Iterator[tuple[int, str, str]]:
    """Yield all places where a process may hold a file: its own PID, the place, and the link in /proc.

    Raises:
        FileNotFoundError, ProcessLookupError: the process has ended.
    """
    pid, entries = pid_in_namespace(process), ProcEntries(process)
    descriptors = (f"{_DESCRIPTORS}{number}" for number in os.listdir(f"/proc/{process}/fd"))
    for place in (*_SINGLE, *descriptors, *entries.mapping_places()):
        yield pid, place, entries.entry_path(place)


def has_ended(process: int) -> bool:
    """Return whether a process has ended, or is only to be reaped."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{process}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    return True


class ProcEntries:
    """A process's entries in /proc. Two mappings may have been merged by the restore: they are found by an address."""

    def __init__(self, process: int) -> None:
        """Read the entries of a process.

        Raises:
            FileNotFoundError, ProcessLookupError: the process has ended.
        """
        self._process = process
        self._areas: list[tuple[int, int, str]] = []
        for name in os.listdir(f"/proc/{process}/map_files"):
            begin, end = name.split("-")
            self._areas.append((int(begin, 16), int(end, 16), name))
        self._areas.sort()

    def mapping_places(self) -> Iterator[str]:
        """Yield the places of all mapped files."""
        for begin, _, _ in self._areas:
            yield f"{_MAPPINGS}{begin:x}"

    def entry_path(self, place: str) -> str:
        """Return the link of a place; it does not exist if the place is empty."""
        if not place.startswith(_MAPPINGS):
            return f"/proc/{self._process}/{place}"
        address = int(place.removeprefix(_MAPPINGS), 16)
        at = bisect_right(self._areas, address, key=lambda area: area[0]) - 1
        name = self._areas[at][2] if at >= 0 and address < self._areas[at][1] else f"{address:x}"
        return f"/proc/{self._process}/{_MAPPINGS}{name}"


class _MountsOf:
    """The mounts of processes. Memory files (memfd, shared anonymous mappings) have a path, but are on none of them."""

    def __init__(self, processes: Iterable[int]) -> None:
        self._processes = processes
        self._numbers: set[bytes] | None = None

    def contain(self, entry: str) -> bool:
        """Return whether the file of a link in /proc is on a mount.

        Raises:
            OSError: it cannot be inspected.
        """
        if self._numbers is None:
            self._numbers = {number for process in self._processes for number in _mount_numbers_of(process)}
        seen = os.open(entry, os.O_PATH | os.O_CLOEXEC)
        try:
            with open(f"/proc/self/fdinfo/{seen}", "rb") as info:
                mounts = [line.split()[1] for line in info if line.startswith(b"mnt_id:")]
        finally:
            os.close(seen)
        return mounts[0] in self._numbers


def _mount_numbers_of(process: int) -> list[bytes]:
    try:
        with open(f"/proc/{process}/mountinfo", "rb") as table:
            return [line.split(b" ", 1)[0] for line in table]
    except OSError:  # EINVAL of one that has ended
        if not has_ended(process):
            raise
        return []


def _stat_volume_file(pid: int, place: str, entry: str) -> VolumeFile:
    path, seen = os.readlink(entry), os.stat(entry)
    return VolumeFile(pid, place, path, seen.st_mode, seen.st_uid, seen.st_gid)
