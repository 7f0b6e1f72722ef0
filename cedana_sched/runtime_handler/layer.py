"""Unpacks an archive over a directory: a container's changes to its image, or a volume's content.

The archive is an uncompressed tar of `snapshot.folder_archive`. A file that had been removed from the image is a
character device 0:0 or has overlayfs' attribute `whiteout`; a directory that hides the lower one has `opaque`. The
whiteout names of images (`.wh.NAME`) have no meaning here: a container may use such names.

The agent wrote the archive, but a workload chose its names, and a process of the pod may run in the volume meanwhile:
the kubelet starts a debug container whenever a user requests one. So every name is resolved beneath the directory
(`runtime_handler.safe_open`), and no link is followed: neither one of the archive's own nor an existing one, nor one
created between two steps. Numeric owners are preserved.
"""

from __future__ import annotations

import os
import stat
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO, NoReturn

from cedana_sched.runtime_handler.safe_open import (
    descriptor_path,
    open_folder,
    open_path_beneath,
    open_trusted_folder,
    remove_all_in,
    remove_recursively,
)
from cedana_sched.runtime_handler.shortage_retries import is_shortage

_XATTR = "SCHILY.xattr."
_OVERLAY = ("trusted.overlay.", "user.overlay.")
_CAPABILITIES = "security.capability"
_SET_IDS = stat.S_ISUID | stat.S_ISGID
_COPIED_BYTES = 1 << 20
_LONGEST_HEADER = 16 << 20
"""Bytes of a member's names and attributes; Linux allows 64 KiB of names, and as much for each value."""


class LayerError(Exception):
    """A layer cannot be unpacked, or removed again; has the reason."""


def unpack_layer(archive: str, root: str, *, instead: bool = False, is_harmless: bool = False) -> None:
    """Unpack an archive below `root`.

    Args:
        archive: its path.
        root: a folder.
        instead: remove the existing content first.
        is_harmless: strip privileges from programs: set-user-ID, set-group-ID and capabilities.

    Raises:
        OSError: the archive or `root` does not exist, the node is out of space, or another system error.
        LayerError: the archive was only partly unpacked.
    """
    with open(archive, "rb") as file:
        held = open_trusted_folder(root)
        try:
            if instead:
                _empty_folder(held, ".")
            _LayerUnpacker(held, is_harmless=is_harmless).unpack(file)
        except LayerError:
            raise
        except Exception as error:  # a workload's names may cause any error
            if is_shortage(error):
                raise
            raise LayerError(f"{type(error).__name__}: {error}") from error
        finally:
            os.close(held)


class _BoundedHeaderMember(tarfile.TarInfo):
    """A member with bounded headers: tarfile reads as many bytes at once as a header declares."""

    def _proc_gnulong(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        self._check_header_size()
        return super()._proc_gnulong(archive)  # type: ignore[misc, no-any-return]  # tarfile's own, without types

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        self._check_header_size()
        return super()._proc_pax(archive)  # type: ignore[misc, no-any-return]  # tarfile's own, without types

    def _check_header_size(self) -> None:
        if not 0 <= self.size <= _LONGEST_HEADER:
            raise LayerError(f"the archive has a header of {self.size} bytes")


class _LayerUnpacker:
    """The unpacking of one archive beneath a held folder."""

    def __init__(self, root: int, *, is_harmless: bool) -> None:
        self._root = root
        self._is_harmless = is_harmless

    def unpack(self, file: BinaryIO) -> None:
        """Unpack the members one by one: there may be millions, and the process has little memory."""
        folders: list[tuple[str, int]] = []
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_BoundedHeaderMember) as archive:
            for member in archive:
                archive.members.clear()  # type: ignore[attr-defined]  # where tarfile keeps each that it has read
                if archive.offset <= member.offset:  # a negative size would be read forever
                    raise LayerError(f"{member.name!r} leads back in the archive")
                path = _member_path(member.name)
                if path is None:
                    continue
                while folders and not path.startswith(f"{folders[-1][0]}/"):  # a folder's members follow it
                    self._set_mtime(*folders.pop())
                self._unpack_member(archive, member, path)
                if member.isdir():
                    folders.append((path, _mtime_nanoseconds(member)))
        while folders:
            self._set_mtime(*folders.pop())

    def _set_mtime(self, path: str, mtime: int) -> None:
        """Set a folder's time, which unpacking its members has changed."""
        with _close_at_end(open_folder(self._root, path)) as folder:
            os.utime(folder, ns=(mtime, mtime))

    def _unpack_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if self._is_harmless and not member.isdir():
            member.mode &= ~_SET_IDS
            attributes = member.pax_headers.items()
            member.pax_headers = {key: value for key, value in attributes if key != _XATTR + _CAPABILITIES}
        above, _, name = path.rpartition("/")
        with _close_at_end(self._open_or_create_folder(above)) as folder:
            if _overlay_attribute(member, "opaque") == "y" and _is_folder(folder, name):
                _empty_folder(folder, name)
            if _is_whiteout(member):
                remove_recursively(folder, name)
                return
            if not (member.isdir() and _is_folder(folder, name)):
                remove_recursively(folder, name)
                self._create(archive, member, folder, name)
            if member.isdir():
                with _close_at_end(open_folder(folder, name)) as made:
                    _set_metadata(member, made)

    def _open_or_create_folder(self, path: str) -> int:
        """Open a folder beneath the root; missing ones are created."""
        try:
            return open_folder(self._root, path or ".")
        except FileNotFoundError:
            above, _, name = path.rpartition("/")
        with _close_at_end(self._open_or_create_folder(above)) as folder:
            os.mkdir(name, 0o755, dir_fd=folder)
            return open_folder(folder, name)

    def _create(self, archive: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str) -> None:
        if member.isdir():
            os.mkdir(name, 0o700, dir_fd=folder)
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=folder)
            os.chown(name, member.uid, member.gid, dir_fd=folder, follow_symlinks=False)
            os.utime(
                name, ns=(_mtime_nanoseconds(member), _mtime_nanoseconds(member)), dir_fd=folder, follow_symlinks=False
            )
        elif member.islnk():  # owner, mode and time are those of the other file
            self._link(member, folder, name)
        elif member.isfifo() or member.ischr() or member.isblk():
            _make_special(member, folder, name)
        elif member.isreg():
            _write(archive, member, folder, name)
        else:
            raise LayerError(f"{member.name!r} is of a kind that no container can have made")

    def _link(self, member: tarfile.TarInfo, folder: int, name: str) -> None:
        above, _, target = (_member_path(member.linkname) or "").rpartition("/")
        with _close_at_end(open_folder(self._root, above or ".")) as source:
            os.link(target, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)


@contextmanager
def _close_at_end(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _member_path(name: str) -> str | None:
    """Return a member's path from the root; None for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or name.startswith("/"):
        raise LayerError(f"{name!r} leads out of the container")
    return "/".join(parts) or None


def _overlay_attribute(member: tarfile.TarInfo, name: str) -> str | None:
    """Return an overlayfs attribute; where users may mount overlays, it has another prefix."""
    found = (member.pax_headers.get(f"{_XATTR}{prefix}{name}") for prefix in _OVERLAY)
    return next((value for value in found if value is not None), None)


def _is_whiteout(member: tarfile.TarInfo) -> bool:
    is_device = member.ischr() and (member.devmajor, member.devminor) == (0, 0)
    return is_device or (member.isreg() and _overlay_attribute(member, "whiteout") is not None)


def _mtime_nanoseconds(member: tarfile.TarInfo) -> int:
    """Return nanoseconds; tarfile itself has a float, which is too imprecise."""
    seconds, _, fraction = member.pax_headers.get("mtime", str(int(member.mtime))).partition(".")
    sign = -1 if seconds.startswith("-") else 1
    return sign * (abs(int(seconds)) * 10**9 + int(fraction.ljust(9, "0")[:9]))


def _make_special(member: tarfile.TarInfo, folder: int, name: str) -> None:
    """Create a FIFO or a device; it is never opened: metadata are set by a path that refers to exactly this file."""
    kind = stat.S_IFIFO if member.isfifo() else stat.S_IFCHR if member.ischr() else stat.S_IFBLK
    device = 0 if member.isfifo() else os.makedev(member.devmajor, member.devminor)
    os.mknod(name, 0o600 | kind, device, dir_fd=folder)
    with _close_at_end(open_path_beneath(folder, name)) as made:
        if stat.S_IFMT(os.fstat(made).st_mode) != kind:
            raise LayerError(f"{member.name!r} was replaced while it was written")
        _set_metadata(member, descriptor_path(made))


def _set_metadata(member: tarfile.TarInfo, made: int | str) -> None:
    """Set owner, mode, attributes and time of a new file, by its descriptor if it may be opened."""
    os.chown(made, member.uid, member.gid)
    os.chmod(made, member.mode)  # after chown, which clears set-user-ID bits
    for key, value in member.pax_headers.items():
        attribute = key.removeprefix(_XATTR)
        if key.startswith(_XATTR) and not attribute.startswith(_OVERLAY):
            os.setxattr(made, attribute, value.encode("utf-8", "surrogateescape"))
    if not member.isdir():
        os.utime(made, ns=(_mtime_nanoseconds(member), _mtime_nanoseconds(member)))


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str) -> None:
    """Write a regular file, with its holes."""
    content = archive.extractfile(member)
    if content is None:
        raise LayerError(f"{member.name!r} has no content in the archive")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as target:
        for offset, length in _data_extents(member):
            content.seek(offset)
            target.seek(offset)
            _copy_exactly(content, target, length, member.name)
        target.truncate(member.size)
        _set_metadata(member, target.fileno())


def _data_extents(member: tarfile.TarInfo) -> list[tuple[int, int]]:
    """Return offset and length of a file's data extents, in order, within the file."""
    sparse: list[tuple[int, int]] | None = getattr(member, "sparse", None)
    runs = [(0, member.size)] if sparse is None else sparse
    ends = 0
    for offset, length in runs:
        if offset < ends or length < 0 or offset + length > member.size:
            raise LayerError(f"{member.name!r} has holes that no file can have")
        ends = offset + length
    return runs


def _copy_exactly(source: IO[bytes], target: BinaryIO, length: int, name: str) -> None:
    while length:
        data = source.read(min(length, _COPIED_BYTES))
        if not data:
            raise LayerError(f"the archive ends within {name!r}")
        target.write(data)
        length -= len(data)


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _empty_folder(folder: int, name: str) -> None:
    with _close_at_end(open_folder(folder, name)) as emptied:
        remove_all_in(emptied)


def main() -> NoReturn:
    """Entry point `python -m cedana_sched.runtime_handler.layer [--volume] ARCHIVE ROOT`, for callers with a loop.

    The existing content of a volume is removed first: it is not in use. And the privileges of the pod's containers are
    unknown at that time: they may start cold, with fewer than at the snapshot.
    """
    *options, archive, root = sys.argv[1:]
    try:
        unpack_layer(archive, root, instead=bool(options), is_harmless=options == ["--volume"])
    except (OSError, LayerError) as error:
        sys.exit(str(error))
    sys.exit(0)


if __name__ == "__main__":
    main()
