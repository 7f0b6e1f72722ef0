"""Files that are whole or absent, whoever is killed while one is written, and however full its disk is.

What is read after a restart is written like this: by the agent, by the runtime handler, by a store that notes where it
is. Standard library only: the handler runs on the host, where nothing else is.
"""

from __future__ import annotations

import os
from contextlib import suppress


def write_whole(path: str | os.PathLike[str], content: bytes, *, mode: int = 0o600) -> None:
    """Give a file its content in one step, in place of the one that is there; it is on the disk when this returns.

    Any number may write it at a time: the last one counts. Until then it lies beside, under a hidden name that begins
    with a dot and the file's own name; who is killed leaves that behind.

    Args:
        path: of the file; its folder is there.
        content: all of it.
        mode: of a new file; one that was there passes on its own, and its owner.

    Raises:
        OSError: it cannot be written, and nothing has changed.
    """
    folder, name = os.path.split(os.fspath(path))
    folder = folder or "."
    hidden = f"{folder}/.{name}.{os.urandom(8).hex()}"
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                _pass_on(os.stat(path), descriptor)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(hidden, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(hidden)
        raise
    _sync(folder)


def is_hidden(name: str) -> bool:
    """Whether a file of this name is one that is being written, or was when its writer was killed."""
    return name.startswith(".")


def name_of(name: str) -> str:
    """What the file is called, or will be when it is whole."""
    return name[1:].rpartition(".")[0] if is_hidden(name) else name


def _pass_on(known: os.stat_result, descriptor: int) -> None:
    """Give the new file the owner and the mode of the one that is there."""
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (known.st_uid, known.st_gid):  # who is not root may not
        os.fchown(descriptor, known.st_uid, known.st_gid)
    os.fchmod(descriptor, known.st_mode & 0o7777)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
