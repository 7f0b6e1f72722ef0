"""Decoding of CRIU's images by pycriu, which is part of the toolchain.

pycriu is not on the public index, so it is imported from the toolchain's folder on first use (60 ms). Only its image
half is used: its `criu` half forks inside calls and blocks, and duplicates the command line.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cedana_sched.model.errors import SnapshotError
from cedana_sched.snapshot.criu_toolchain import Toolchain

ReadImage = Callable[[str], bytes]
"""Returns an image by its name; raises FileNotFoundError or KeyError if the snapshot has none of that name."""

Entry = dict[str, Any]

_KINDS = {
    "core": "CORE",
    "fdinfo": "FDINFO",
    "filelocks": "FILE_LOCKS",
    "files": "FILES",
    "ids": "IDS",
    "inventory": "INVENTORY",
    "mm": "MM",
    "mountpoints": "MNTS",
    "pagemap": "PAGEMAP",
    "pstree": "PSTREE",
    "remap-fpath": "REMAP_FPATH",
    "sk-queues": "SK_QUEUES",
    "tty-data": "TTY_DATA",
    "tty-info": "TTY_INFO",
}
"""The kind in an image's magic, by its name without a number."""
_WITH_HEAD = {"PAGEMAP"}
"""Kinds whose first entry is a message of another type."""


class Images:
    """The images of one snapshot."""

    def __init__(self, toolchain: Toolchain, read: ReadImage) -> None:
        self._read = read
        self._codec = _import_pycriu(toolchain.pycriu)

    def read_entries(self, name: str, *, readable: bool = False) -> list[Entry]:
        """Return the entries of an image; none if the snapshot has no such image.

        Args:
            name: the image's name, like `core-1.img`.
            readable: flags and addresses as text instead of numbers.

        Raises:
            SnapshotError: the image exists but cannot be decoded.
        """
        content = self.read_image(name, readable=readable)
        entries: list[Entry] = content["entries"] if content else []
        return entries

    def read_image(self, name: str, *, readable: bool = False) -> Entry | None:
        """Return a whole image, with its kind and entries; None if the snapshot has no such image.

        Raises:
            SnapshotError: the image exists but cannot be decoded.
        """
        try:
            data = self._read(name)
        except (FileNotFoundError, KeyError):
            return None
        try:
            content: Entry = self._codec.loads(data, readable)
            self._validate_and_complete(name, content)
        except Exception as error:  # pycriu raises bare Exception, struct.error and protobuf's own
            raise SnapshotError(
                f"image {name} cannot be decoded: {error}", remedy="verify the snapshot in its store"
            ) from error
        return content

    def _validate_and_complete(self, name: str, content: Entry) -> None:
        """Check an image's kind and required fields, on which readers rely; complete its repeated fields."""
        kind = _KINDS.get(name.removesuffix(".img").rstrip("-0123456789"))
        if kind is None:
            return
        if content["magic"] != kind:
            raise ValueError(f"it calls itself {content['magic']}, not {kind}")
        if kind not in _WITH_HEAD:
            message = self._codec.handlers[kind].payload.DESCRIPTOR
            for entry in content["entries"]:
                _check_fields(message, entry)

    def replace(self, path: Path, content: Entry) -> None:
        """Replace an image by the modified result of `content`."""
        entries = [_without_empty_lists(entry) for entry in content["entries"]]
        path.write_bytes(self._codec.dumps({**content, "entries": entries}))


def files_found_by_name(images: Images, content: Entry) -> list[Entry]:
    """Return the regular files in the content of `files.img`, except those deleted before the dump.

    These have the name of another file, or of none.

    Raises:
        SnapshotError: an image cannot be decoded.
    """
    deleted = {entry["orig_id"] for entry in images.read_entries("remap-fpath.img")}
    return [entry["reg"] for entry in content["entries"] if "reg" in entry and entry["id"] not in deleted]


def _check_fields(message: Any, entry: Entry) -> None:
    """Raise ValueError where a required field is missing; add the repeated fields that are empty."""
    for field in message.fields:
        if field.name not in entry:
            if field.is_required:
                raise ValueError(f"an entry of it has no {field.name}")
            if field.is_repeated:
                entry[field.name] = []  # pycriu's decoder drops empty ones
        elif field.type == field.TYPE_MESSAGE:
            value = entry[field.name]
            for one in value if field.is_repeated else [value]:
                _check_fields(field.message_type, one)


def _without_empty_lists(entry: Entry) -> Entry:
    """Drop empty repeated fields, as pycriu's own decoder does: its encoder does not support them."""
    return {name: _drop_nested_empty_lists(value) for name, value in entry.items() if value != []}


def _drop_nested_empty_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return _without_empty_lists(value)
    return [_drop_nested_empty_lists(one) for one in value] if isinstance(value, list) else value


def folder_reader(folder: Path) -> ReadImage:
    """Return a `ReadImage` for images in a folder."""
    return lambda name: (folder / name).read_bytes()


def _import_pycriu(pycriu: Path) -> Any:
    if str(pycriu) not in sys.path:
        sys.path.append(str(pycriu))  # at the end: hides nothing of the environment's own
    return importlib.import_module("pycriu.images")
