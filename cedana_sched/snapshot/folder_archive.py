"""Streaming of a folder as a tar archive: a container's changes to its root, or one of its volumes.

The archive is POSIX.1-2001 (pax) with GNU's extension for sparse files, as in GNU tar. The archive has all metadata of
a file: numeric owner, mode, time to the nanosecond, extended attributes (`SCHILY.xattr.…`), hard links, holes, devices.
Names are sorted, so that two archives of a folder differ only where the folder does. Excluded: sockets, which programs
create anew; other filesystems mounted inside; and temporary names of CRIU's during a dump.

Of an overlay the *upper* directory is archived verbatim: a removed file is a character device 0:0, and a directory that
hides the lower one has the attribute `opaque`. Other attributes of overlayfs refer to inodes of this machine, and are
excluded. Renamed folders and files without content of their own (mount options `redirect_dir` and `metacopy`, which no
container runtime uses) are refused.

The content of a large file is page-aligned in the stream, so that the store deduplicates it in the next generation at
any offset.

The folder should not change meanwhile: its processes are frozen. A process that runs all the same corrupts the archive,
but cannot add foreign files to it: the folder is walked by descriptors (`runtime_handler.safe_open`), links are
archived as links, and only folders and regular files are opened.

`runtime_handler.layer` unpacks it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cedana_sched.model.errors import DumpError
from cedana_sched.runtime_handler.safe_open import (
    descriptor_path,
    open_folder,
    open_mounted_path,
    open_path_beneath,
    open_regular_file,
    open_trusted_folder,
)
from cedana_sched.snapshot.image_stream_receiver import ImageWriter

_BLOCK = tarfile.BLOCKSIZE
_BUFFER_BYTES = 1 << 20
_PAGE_BYTES = 4096
_ALIGNED_FROM_BYTES = 64 << 10
_XATTR = "SCHILY.xattr."
_OVERLAY = re.compile(r"(?:trusted|user)\.overlay\.(.+)")
_OVERLAY_KEPT = frozenset({"opaque", "whiteout"})
_OVERLAY_REFUSED = frozenset({"redirect", "metacopy"})
_OF_THIS_CONTAINER = frozenset({"security.selinux"})  # the label isolates containers; the new one has another
_EXCHANGED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_LINK_REMAP = re.compile(r"link_remap\.\d+")  # criu/files-reg.c


class _DataExtent(NamedTuple):
    """A data extent of a file, not a hole."""

    offset: int
    length: int


def write_archive(root: Path, stream: ImageWriter) -> int:
    """Write a folder as an archive, and close the stream; return its bytes.

    Raises:
        DumpError: an archive cannot represent its contents, or a file was truncated while it was read.
        OSError: a file cannot be read.
    """
    held = open_trusted_folder(root)
    try:
        archive = _Archive(root, held, stream)
        archive.add_all()
        return archive.finish()
    finally:
        os.close(held)


class _Archive:
    """Names begin with `./`: the name of a member is also its path from the root."""

    def __init__(self, root: Path, held: int, stream: ImageWriter) -> None:
        self._root = root
        self._held = held
        self._device = os.fstat(held).st_dev
        self._stream = stream
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._used = 0
        self._written = 0
        self._names: dict[int, str] = {}

    def add_all(self) -> None:
        """Add the root, and everything in it."""
        self._add(self._held, "./")
        waiting = self._child_names_of("./")
        while waiting:
            name = waiting.pop()
            try:
                if self._add_child(name):
                    waiting += self._child_names_of(name + "/")
            except OSError as error:
                if error.errno not in _EXCHANGED:
                    raise
                raise DumpError(
                    f"{self._path_for_messages(name)} was removed or exchanged while it was saved",
                    remedy="see who else writes to it",
                ) from error

    def _child_names_of(self, name: str) -> list[str]:
        """Return the names in a folder, in descending order."""
        folder = open_folder(self._held, name)
        try:
            children = sorted(os.listdir(folder), reverse=True)  # noqa: PTH208 - it is a descriptor
        finally:
            os.close(folder)
        return [name + child for child in children if not _LINK_REMAP.fullmatch(child)]

    def _add_child(self, name: str) -> bool:
        """Add a file; return whether it is a folder whose contents must be added."""
        try:
            seen = open_path_beneath(self._held, name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._add_mount_point(name)
            return False
        try:
            status = self._add(seen, name)
        finally:
            os.close(seen)
        return stat.S_ISDIR(status.st_mode) and status.st_dev == self._device

    def _add_mount_point(self, name: str) -> None:
        """Add an empty folder for a mount point: the mount's contents are excluded, but its target must exist again."""
        seen = open_mounted_path(self._held, name)
        try:
            if stat.S_ISDIR(os.fstat(seen).st_mode):
                self._add(seen, name)
        finally:
            os.close(seen)

    def _add(self, seen: int, name: str) -> os.stat_result:
        """Add one file, for a folder without its contents; return its status as archived."""
        status = os.fstat(seen)
        if stat.S_ISSOCK(status.st_mode):
            return status
        info = _tar_info_of(name, status)
        info.pax_headers = {**info.pax_headers, **_extended_attributes_of(seen, self._path_for_messages(name))}
        if stat.S_ISLNK(status.st_mode):
            info.linkname = os.readlink("", dir_fd=seen)  # verbatim
        elif status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode) and not _is_whiteout(status):
            if first := self._names.get(status.st_ino):
                info.type, info.linkname, info.pax_headers = tarfile.LNKTYPE, first, {}
            self._names.setdefault(status.st_ino, name)
        if info.type == tarfile.REGTYPE:
            self._add_content(seen, info, status.st_size)
        else:
            self._write_buffered(_header(info))
        return status

    def _path_for_messages(self, name: str) -> Path:
        """Return the path for messages."""
        return self._root / name

    def finish(self) -> int:
        """Write the end of the archive."""
        self._write_buffered(bytes(2 * _BLOCK))
        self._flush()
        self._stream.close()
        return self._written

    def _add_content(self, seen: int, info: tarfile.TarInfo, size: int) -> None:
        name = info.name
        descriptor = open_regular_file(seen)
        try:
            data = list(_data_extents(descriptor, size))
            if sum(run.length for run in data) == size:
                sparse_map = b""
                info.size = size
            else:
                sparse_map = _use_sparse_format(info, data, size)
            header = _header(info)
            gap = -(self._written + self._used + len(header) + len(sparse_map)) % _PAGE_BYTES
            if gap and size >= _ALIGNED_FROM_BYTES:
                header = _pad_header(info, gap)
            self._write_buffered(header + sparse_map)
            for run in data:
                self._copy_extent(name, descriptor, run)
        finally:
            os.close(descriptor)
        self._write_buffered(bytes(-info.size % _BLOCK))

    def _copy_extent(self, name: str, descriptor: int, run: _DataExtent) -> None:
        offset, left = run
        while left:
            if self._used == _BUFFER_BYTES:
                self._flush()
            room = self._buffer[self._used : self._used + left]
            count = os.preadv(descriptor, [room], offset)
            if not count:
                raise DumpError(
                    f"{self._path_for_messages(name)} became shorter while it was saved",
                    remedy="see who else writes to it",
                )
            self._used += count
            offset += count
            left -= count

    def _write_buffered(self, data: bytes) -> None:
        while data:
            if self._used == _BUFFER_BYTES:
                self._flush()
            part, data = data[: _BUFFER_BYTES - self._used], data[_BUFFER_BYTES - self._used :]
            self._buffer[self._used : self._used + len(part)] = part
            self._used += len(part)

    def _flush(self) -> None:
        if self._used:
            self._stream.write(self._buffer[: self._used])
        self._written += self._used
        self._used = 0


_KINDS = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


def _tar_info_of(name: str, status: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = _KINDS[stat.S_IFMT(status.st_mode)]
    info.mode = stat.S_IMODE(status.st_mode)
    info.uid, info.gid = status.st_uid, status.st_gid
    info.devmajor, info.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
    seconds, nanoseconds = divmod(abs(status.st_mtime_ns), 10**9)
    info.mtime = status.st_mtime_ns // 10**9
    info.pax_headers = {"mtime": f"{'-' if status.st_mtime_ns < 0 else ''}{seconds}.{nanoseconds:09}"}
    return info


def _is_whiteout(status: os.stat_result) -> bool:
    """Return whether a file is a whiteout; overlayfs links many to one inode."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _extended_attributes_of(seen: int, shown: Path) -> dict[str, str]:
    path = descriptor_path(seen)
    try:
        names = os.listxattr(path)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return {}
        raise
    found = {}
    for name in names:
        overlay = _OVERLAY.fullmatch(name)
        if overlay and overlay.group(1) in _OVERLAY_REFUSED:
            raise DumpError(
                f"{shown} is a rename or a change of attributes that overlayfs has not copied ({name})",
                remedy="mount container roots without redirect_dir and metacopy",
            )
        if name in _OF_THIS_CONTAINER or (overlay and overlay.group(1) not in _OVERLAY_KEPT):
            continue
        value = os.getxattr(path, name)
        found[_XATTR + name] = value.decode("utf-8", "surrogateescape")
    return found


def _data_extents(descriptor: int, size: int) -> Iterator[_DataExtent]:
    """Yield the data extents of a file, in order."""
    offset = 0
    while offset < size:
        try:
            begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # a hole up to the end
            raise
        offset = min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
        yield _DataExtent(begin, offset - begin)


def _use_sparse_format(info: tarfile.TarInfo, data: list[_DataExtent], size: int) -> bytes:
    """Turn a member into GNU's sparse format 1.0; return the map that precedes its data."""
    entries = [*data, _DataExtent(size, 0)]
    text = "".join(f"{number}\n" for number in (len(entries), *(part for run in entries for part in run)))
    sparse_map = text.encode().ljust(-(-len(text) // _BLOCK) * _BLOCK, b"\0")
    info.pax_headers = {
        **info.pax_headers,
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": info.name,
        "GNU.sparse.realsize": str(size),
    }
    info.size = len(sparse_map) + sum(run.length for run in data)
    return sparse_map


def _pad_header(info: tarfile.TarInfo, blocks_bytes: int) -> bytes:
    """Return a header longer by some blocks: a comment whose record (length, key, value) fills them."""
    frame = f"{blocks_bytes} comment=\n"
    info.pax_headers = {**info.pax_headers, "comment": " " * (blocks_bytes - len(frame))}
    return _header(info)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
