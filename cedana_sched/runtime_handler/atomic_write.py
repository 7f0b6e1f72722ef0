"""Atomic writes of files, which are complete or absent even if their writer is killed or the disk is full.

For all files that are read after a restart. Standard library only: the handler runs on the host, without other
packages.
"""

from __future__ import annotations

import os
from contextlib import suppress


def write_atomically(path: str | os.PathLike[str], content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file's content atomically; it is durable on return.

    Concurrent writers are safe: the last one wins. The new content is first written to a hidden temporary file in the
    same folder, whose name is a dot and the file's own name; a killed writer leaves it behind.

    Args:
        path: of the file; its folder must exist.
        content: all of it.
        mode: of a new file; an existing one's mode and owner are preserved.

    Raises:
        OSError: the file cannot be written, and nothing has changed.
    """
    folder, name = os.path.split(os.fspath(path))
    folder = folder or "."
    hidden = f"{folder}/.{name}.{os.urandom(8).hex()}"
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                _copy_owner_and_mode(os.stat(path), descriptor)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(hidden, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(hidden)
        raise
    _sync_folder(folder)


def is_temporary_name(name: str) -> bool:
    """Return whether a file of this name is temporary, perhaps of a killed writer."""
    return name.startswith(".")


def final_name(name: str) -> str:
    """Return the file's name, or its final name if it is temporary."""
    return name[1:].rpartition(".")[0] if is_temporary_name(name) else name


def _copy_owner_and_mode(known: os.stat_result, descriptor: int) -> None:
    """Copy owner and mode of the existing file to the new one."""
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (known.st_uid, known.st_gid):  # only root may chown
        os.fchown(descriptor, known.st_uid, known.st_gid)
    os.fchmod(descriptor, known.st_mode & 0o7777)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
