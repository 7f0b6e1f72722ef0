"""Files below the folder of a store, opened by descriptors: links created there cannot redirect us.

The folder itself is resolved by its path on each call, because it may be unmounted and mounted again. The admin may
configure a path with links in it; everything below is opened by `runtime_handler.safe_open`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cedana_sched.runtime_handler import safe_open

DEEPEST = 16
"""Levels of folders below a listed one; ours have six. Deeper ones are foreign."""


class ListedFile(NamedTuple):
    """A name in a folder: a descriptor, valid until the next is yielded, the path below the walk's root, the name."""

    folder: int
    path: str
    name: str


@contextmanager
def open_folder(root: Path, path: str = "") -> Iterator[int]:
    """Open a folder at or below the root; the descriptor may be listed and flushed.

    Raises:
        OSError: the folder does not exist; a link is on the way (ELOOP); the name is no folder.
    """
    with _open_root(root) as top:
        folder = safe_open.open_mounted_folder(top, path or ".")
    try:
        yield folder
    finally:
        os.close(folder)


def open_file(root: Path, path: str) -> int:
    """Open a regular file below the root for reading.

    Raises:
        OSError: the file does not exist; a link is in its place or on the way (ELOOP); the name is no regular file
            (EINVAL).
    """
    with _open_root(root) as top:
        seen = safe_open.open_mounted_path(top, path)
    try:
        return safe_open.open_regular_file(seen)
    finally:
        os.close(seen)


def read_file(root: Path, path: str, most: int) -> bytes:
    """Read a small file, or its first bytes; raises like `open_file`."""
    with os.fdopen(open_file(root, path), "rb", buffering=0) as file:
        return file.read(most) or b""


def walk_files(folder: int, path: str, depth: int = DEEPEST) -> Iterator[ListedFile]:
    """Yield the regular files in an `open_folder` folder and below; links and devices are skipped.

    Raises:
        OSError: a folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if _is_file_or_folder(entry)
            ]
    except FileNotFoundError:
        return  # the folder was removed meanwhile
    for name, is_folder in found:
        if not is_folder:
            yield ListedFile(folder, path, name)
        elif depth:
            try:
                inner = safe_open.open_mounted_folder(folder, name)
            except FileNotFoundError:
                continue  # removed meanwhile
            try:
                yield from walk_files(inner, f"{path}/{name}", depth - 1)
            finally:
                os.close(inner)


def folder_names_in(folder: int) -> Iterator[str]:
    """Yield the names of the folders in an `open_folder` folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry.name


@contextmanager
def _open_root(root: Path) -> Iterator[int]:
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield top
    finally:
        os.close(top)


def _is_file_or_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
