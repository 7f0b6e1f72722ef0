"""Lays the files that a container had changed over the files of its image.

A layer is a tar archive without compression, as of an overlay's upper directory. A file that the container had removed
is a character device 0:0, as overlayfs has it, or an empty file `.wh.NAME`, as images have it; a directory that it had
emptied and filled anew carries overlayfs' attribute `opaque`, or an empty file `.wh..wh..opq`.

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
from typing import BinaryIO, NoReturn

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_XATTR = "SCHILY.xattr."
_OVERLAY = ("trusted.overlay.", "user.overlay.")
_COPIED_BYTES = 1 << 20


class LayerError(Exception):
    """A layer cannot be laid, or taken away again; says why."""


def lay(archive: str, root: str) -> None:
    """Lay the files of an archive below `root`.

    Raises:
        OSError: the archive or `root` is not there.
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
        os._exit(1)
    os._exit(0)


def lay_here(file: BinaryIO) -> None:
    """Lay an archive below the root directory of this process, whatever that is."""
    folders: list[tarfile.TarInfo] = []
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            path = _path(member.name)
            if path is None:
                continue
            if _is_opaque(member):
                _empty(path if member.isdir() else os.path.dirname(path))
            if removed := _removed(member, path):
                _remove(removed)
            elif os.path.basename(path) != _OPAQUE:
                _make(archive, member, path)
                if member.isdir():
                    folders.append(member)
    for member in reversed(folders):  # what was laid into them has touched their times
        path = _path(member.name)
        os.utime(path or "/", (member.mtime, member.mtime))


def _path(name: str) -> str | None:
    """Where a member belongs; None for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise LayerError(f"{name!r} leads out of the container")
    return "/" + "/".join(parts) if parts else None


def _is_opaque(member: tarfile.TarInfo) -> bool:
    attribute = member.pax_headers.get(f"{_XATTR}trusted.overlay.opaque")
    return attribute == "y" or os.path.basename(member.name) == _OPAQUE


def _removed(member: tarfile.TarInfo, path: str) -> str | None:
    """The file that a member says is removed."""
    folder, name = os.path.split(path)
    if member.ischr() and (member.devmajor, member.devminor) == (0, 0):
        return path
    if name.startswith(_WHITEOUT) and name != _OPAQUE:
        return os.path.join(folder, name.removeprefix(_WHITEOUT))
    return None


def _make(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not (member.isdir() and _is_folder(path)):
        _remove(path)
        _create(archive, member, path)
    if member.islnk():
        return  # it is the other file's owner, mode and time that count
    os.chown(path, member.uid, member.gid, follow_symlinks=False)
    if member.issym():
        os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)
        return
    os.chmod(path, member.mode)  # after the owner, which takes set-user-id bits away
    for key, value in member.pax_headers.items():
        attribute = key.removeprefix(_XATTR)
        if key.startswith(_XATTR) and not attribute.startswith(_OVERLAY):
            os.setxattr(path, attribute, value.encode("utf-8", "surrogateescape"), follow_symlinks=False)
    if not member.isdir():
        os.utime(path, (member.mtime, member.mtime))


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
        content = archive.extractfile(member)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as target:
            if content is not None:
                shutil.copyfileobj(content, target, _COPIED_BYTES)
    else:
        raise LayerError(f"{member.name!r} is of a kind that no container can have made")


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
    """`python -m cedana_sched.runtime.layer ARCHIVE ROOT`, for callers with threads, which must not fork themselves."""
    try:
        lay(sys.argv[1], sys.argv[2])
    except (OSError, LayerError) as error:
        sys.exit(str(error))
    sys.exit(0)


if __name__ == "__main__":
    main()
