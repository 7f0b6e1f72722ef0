"""Further files of one terminal in staged images, which CRIU would link with each other.

CRIU 4.2.1 means to link the two ends of a pseudo-terminal, and links whichever two of its open files come first
(criu/tty.c, `tty_setup_slavery`). With more than one file of the slave, that has two consequences:

* Both ends are in the images: what waits unread at the master is lost, and what waits at the slave is written as
  output. So all files but the first get an entry of their own behind the ends' entries: the ends are linked.
* The master is outside: if the files are even in number, each is linked, and the session gets no controlling terminal.
  So one of them becomes a file of a kind that CRIU does not link: it opens it last in its process (`TTY_TYPE__CTTY`),
  and by the name that it has in the images. If the process has no other file of the terminal, which must be restored
  before, it gets a duplicate of another process's file instead.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cedana_sched.snapshot.images import Entry, Images

_INFO, _FILES = "tty-info.img", "files.img"
_TABLES = "fdinfo-*.img"
_CURRENT = os.makedev(5, 0)
_SLAVES = range(136, 144)
"""Majors of pseudo-terminals (linux/major.h)."""


class _Terminal(NamedTuple):
    """One pseudo-terminal with more than one file of its slave under one entry."""

    slave: Entry
    master: Entry | None
    files: list[Entry]


def separate_terminal_files(images: Images, folder: Path) -> int:
    """Change the staged images such that CRIU links the ends of terminals only; return the number of terminals changed.

    Raises:
        SnapshotError: an image cannot be decoded.
    """
    info = images.read_image(_INFO) or {"entries": []}
    if not any(_is_slave(entry) for entry in info["entries"]):
        return 0
    files = images.read_image(_FILES) or {"entries": []}
    changed = 0
    for terminal in list(_shared_terminals(info["entries"], files["entries"])):
        if terminal.master is not None:
            _separate_from_ends(terminal, terminal.master, info["entries"])
        elif len(terminal.files) % 2 == 0:
            _separate_from_pairs(images, folder, terminal, info["entries"], files)
        else:
            continue
        changed += 1
    if changed:
        images.replace(folder / _FILES, files)
        images.replace(folder / _INFO, info)
    return changed


def _shared_terminals(entries: list[Entry], files: list[Entry]) -> Iterator[_Terminal]:
    opened: dict[int, list[Entry]] = defaultdict(list)
    for entry in files:
        if "tty" in entry:
            opened[entry["tty"]["tty_info_id"]].append(entry)
    ends = [entry for entry in entries if entry["type"] == "PTY" and {"pty", "termios"} <= entry.keys()]
    masters = {entry["pty"]["index"]: entry for entry in ends if not _is_slave(entry)}
    slaves = {entry["pty"]["index"]: entry for entry in reversed(ends) if _is_slave(entry)}  # the first of each
    for index, slave in slaves.items():
        if len(opened[slave["id"]]) > 1:
            yield _Terminal(slave, masters.get(index), opened[slave["id"]])


def _is_slave(entry: Entry) -> bool:
    return entry["type"] == "PTY" and os.major(entry["rdev"]) in _SLAVES


def _separate_from_ends(terminal: _Terminal, master: Entry, entries: list[Entry]) -> None:
    """Give all files but the first an entry behind those of the ends; CRIU wants a pair of entries, here too."""
    number = _unused_id(entries)
    entries += [{**terminal.slave, "id": number}, {**master, "id": number + 1}]
    for file in terminal.files[1:]:
        file["tty"]["tty_info_id"] = number


def _separate_from_pairs(images: Images, folder: Path, terminal: _Terminal, entries: list[Entry], files: Entry) -> None:
    tables = {path: images.read_image(path.name) or {"entries": []} for path in sorted(folder.glob(_TABLES))}
    known = {file["id"] for file in terminal.files}
    held = [{entry["id"] for entry in table["entries"] if entry["type"] == "TTY"} & known for table in tables.values()]
    for file in reversed(terminal.files):
        if all(len(together) > 1 for together in held if file["id"] in together):
            number = _unused_id(entries)
            entries.append({name: value for name, value in terminal.slave.items() if name != "pty"}
                           | {"id": number, "type": "CTTY", "rdev": _CURRENT})  # fmt: skip
            file["tty"]["tty_info_id"] = number
            return
    *others, last = terminal.files
    same = next((file for file in others if file["tty"]["flags"] == last["tty"]["flags"]), others[0])
    for path, table in tables.items():
        found = [entry for entry in table["entries"] if entry["type"] == "TTY" and entry["id"] == last["id"]]
        for entry in found:
            entry["id"] = same["id"]
        if found:
            images.replace(path, table)
    files["entries"].remove(last)


def _unused_id(entries: list[Entry]) -> int:
    """Return an id for a slave's entry: even, and the next one, its master's, is unused as well."""
    used = {entry["id"] // 2 for entry in entries}
    return 2 * next(number for number in range(len(used) + 1) if number not in used)
