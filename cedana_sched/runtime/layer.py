"""Lays an archive of files over a directory: what a container had changed over its image, or a volume's content.

The archive is a tar without compression, as `snapshot.archive` writes it. A file that had been removed from the image
is a character device 0:0 or has overlayfs' attribute `whiteout`; a directory that hides what lies below has `opaque`.
Names that images use for the same (`.wh.NAME`) mean nothing here: a container may call its files so.

The archive was written by the agent, but its names were chosen by a workload: it is laid by a process whose root
directory is the container's own, so no name and no link leads out of it. Numbers of owners are kept as they are.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tarfile
from contextlib import suppress
from typing import IO, BinaryIO, NoReturn

from cedana_sched.runtime.shortages import SHORTAGES, is_shortage

_XATTR = "SCHILY.xattr."
_OVERLAY = ("trusted.overlay.", "user.overlay.")
_COPIED_BYTES = 1 << 20


class LayerError(Exception):
    """A layer cannot be laid, or taken away again; says why."""


def lay(archive: str, root: str) -> None:
    """Lay the files of an archive below `root`.

    Raises:
        OSError: the archive or `root` is not there, or the node lacks room, or whatever else.
        LayerError: not all of it could be laid; some of it is.
    """
    with open(archive, "rb") as file:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _lay_in_child(file, root, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            said = answer.read().decode(errors="replace")
        _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) in SHORTAGES:
        raise OSError(os.waitstatus_to_exitcode(status), said)
    if status:
        raise LayerError(said or f"the process that laid it ended with status {os.waitstatus_to_exitcode(status)}")


def _lay_in_child(file: BinaryIO, root: str, answer: int) -> NoReturn:
    try:
        os.chroot(root)
        os.chdir("/")
        os.umask(0)
        lay_here(file)
    except BaseException as error:  # noqa: BLE001 - the parent is told, whatever it was
        os.write(answer, f"{type(error).__name__}: {error}".encode()[:4096])
        os._exit(error.errno or 1 if isinstance(error, OSError) and is_shortage(error) else 1)
    os._exit(0)


def lay_here(file: BinaryIO) -> None:
    """Lay an archive below the root directory of this process, whatever that is."""
    folders: list[tuple[str, int]] = []
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            path = _path(member.name)
            if path is None:
                continue
            if _overlay(member, "opaque") == "y":
                _empty(path)
            if _is_whiteout(member):
                _remove(path)
                continue
            _make(archive, member, path)
            if member.isdir():
                folders.append((path, _mtime(member)))
    for path, mtime in reversed(folders):  # what was laid into them has touched their times
        os.utime(path, ns=(mtime, mtime))


def _path(name: str) -> str | None:
    """Where a member belongs; None for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise LayerError(f"{name!r} leads out of the container")
    return "/" + "/".join(parts) if parts else None


def _overlay(member: tarfile.TarInfo, name: str) -> str | None:
    """An attribute of overlayfs' own; where users may mount overlays, it has another prefix."""
    found = (member.pax_headers.get(f"{_XATTR}{prefix}{name}") for prefix in _OVERLAY)
    return next((value for value in found if value is not None), None)


def _is_whiteout(member: tarfile.TarInfo) -> bool:
    is_device = member.ischr() and (member.devmajor, member.devminor) == (0, 0)
    return is_device or (member.isreg() and _overlay(member, "whiteout") is not None)


def _mtime(member: tarfile.TarInfo) -> int:
    """Nanoseconds; tarfile itself keeps a float, which cannot hold them."""
    seconds, _, fraction = member.pax_headers.get("mtime", str(int(member.mtime))).partition(".")
    sign = -1 if seconds.startswith("-") else 1
    return sign * (abs(int(seconds)) * 10**9 + int(fraction.ljust(9, "0")[:9]))


def _make(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not (member.isdir() and _is_folder(path)):
        _remove(path)
        _create(archive, member, path)
    if member.islnk():
        return  # it is the other file's owner, mode and time that count
    os.chown(path, member.uid, member.gid, follow_symlinks=False)
    if member.issym():
        os.utime(path, ns=(_mtime(member), _mtime(member)), follow_symlinks=False)
        return
    os.chmod(path, member.mode)  # after the owner, which takes set-user-id bits away
    for key, value in member.pax_headers.items():
        attribute = key.removeprefix(_XATTR)
        if key.startswith(_XATTR) and not attribute.startswith(_OVERLAY):
            os.setxattr(path, attribute, value.encode("utf-8", "surrogateescape"), follow_symlinks=False)
    if not member.isdir():
        os.utime(path, ns=(_mtime(member), _mtime(member)))


def _create(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    if member.isdir():
        os.mkdir(path, 0o700)
    elif member.issym():
        os.symlink(member.linkname, path)
    elif member.islnk():
        os.link(_path(member.linkname) or "/", path, follow_symlinks=False)
    elif member.isfifo():
        os.mkfifo(path, 0o600)
    elif member.ischr() or member.isblk():
        kind = stat.S_IFCHR if member.ischr() else stat.S_IFBLK
        os.mknod(path, 0o600 | kind, os.makedev(member.devmajor, member.devminor))
    elif member.isreg():
        _write(archive, member, path)
    else:
        raise LayerError(f"{member.name!r} is of a kind that no container can have made")


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """A regular file, with its holes."""
    content = archive.extractfile(member)
    if content is None:
        raise LayerError(f"{member.name!r} has no content in the archive")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as target:
        runs: list[tuple[int, int]] = getattr(member, "sparse", None) or [(0, member.size)]
        for offset, length in runs:
            content.seek(offset)
            target.seek(offset)
            _copy(content, target, length, member.name)
        target.truncate(member.size)


def _copy(source: IO[bytes], target: BinaryIO, length: int, name: str) -> None:
    while length:
        data = source.read(min(length, _COPIED_BYTES))
        if not data:
            raise LayerError(f"the archive ends within {name!r}")
        target.write(data)
        length -= len(data)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _empty(folder: str) -> None:
    if _is_folder(folder):
        for name in os.listdir(folder):
            _remove(os.path.join(folder, name))


def _remove(path: str) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def main() -> NoReturn:
    """`python -m cedana_sched.runtime.layer [--instead] ARCHIVE ROOT`, for callers with threads, which must not fork.

    With `--instead`, what is there goes first: nothing of it is in use.
    """
    *options, archive, root = sys.argv[1:]
    try:
        if options == ["--instead"]:
            _empty(root)
        lay(archive, root)
    except (OSError, LayerError) as error:
        sys.exit(str(error))
    sys.exit(0)


if __name__ == "__main__":
    main()
