"""Files below the folder of a store, reached by descriptors: no link that somebody makes there leads us elsewhere.

The folder itself is found by its path on each call, as what is mounted there may go and come back. Its admin may give a
path with links in it; everything below is opened as `runtime.beneath` says. `posix` and `mark` call it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cedana_sched.runtime import beneath

DEEPEST = 16
"""Folders below one that is listed; what we make has six. What lies deeper is not ours."""


class Name(NamedTuple):
    """A name in a folder: a descriptor, good until the next one comes, the path below what is walked, and the name."""

    folder: int
    path: str
    name: str


@contextmanager
def opened(root: Path, path: str = "") -> Iterator[int]:
    """A descriptor of a folder at or below the root, which may be listed and flushed.

    Raises:
        OSError: it is not there; a link is on the way (ELOOP); it is no folder.
    """
    with _held(root) as top:
        folder = beneath.open_mounted_folder(top, path or ".")
    try:
        yield folder
    finally:
        os.close(folder)


def open_file(root: Path, path: str) -> int:
    """A descriptor of a regular file below the root, to be read.

    Raises:
        OSError: it is not there; a link is in its place or on the way (ELOOP); it is no regular file (EINVAL).
    """
    with _held(root) as top:
        seen = beneath.look_at_mount(top, path)
    try:
        return beneath.open_regular(seen)
    finally:
        os.close(seen)


def read_file(root: Path, path: str, most: int) -> bytes:
    """What is in a small file, or its first bytes; raises as `open_file` does."""
    with os.fdopen(open_file(root, path), "rb", buffering=0) as file:
        return file.read(most) or b""


def walk(folder: int, path: str, depth: int = DEEPEST) -> Iterator[Name]:
    """The regular files in a folder of `opened`, and in those below it; links and devices are passed over.

    Raises:
        OSError: a folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if _is_plain(entry)]
    except FileNotFoundError:
        return  # the folder was removed meanwhile
    for name, is_folder in found:
        if not is_folder:
            yield Name(folder, path, name)
        elif depth:
            try:
                inner = beneath.open_mounted_folder(folder, name)
            except FileNotFoundError:
                continue  # removed meanwhile
            try:
                yield from walk(inner, f"{path}/{name}", depth - 1)
            finally:
                os.close(inner)


def folders(folder: int) -> Iterator[str]:
    """The names of the folders in a folder of `opened`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry.name


@contextmanager
def _held(root: Path) -> Iterator[int]:
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield top
    finally:
        os.close(top)


def _is_plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
