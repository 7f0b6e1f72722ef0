"""Files of /dev/tty: saved as external terminals, and restored as files of the terminals that they lead to.

/dev/tty is the controlling terminal of the process that opens it (tty(4)). CRIU 4.2.1 saves such a file only if its
process leads the terminal's session, is in its foreground group, and was the first that CRIU found with the terminal
open (criu/tty.c, `tty_verify_ctty`): not of a shell while a command runs in front, nor of what runs under a shell. And
it restores it by opening /dev/tty, which fails in all but the session's leader: no other process has a controlling
terminal again.

As an external terminal (`--external tty[RDEV:DEV]`) CRIU saves such a file always, with the session of its terminal.
That session is also in the entry of the terminal itself, by whose name the restored processes have the file then. A
dump changes nothing in the processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cedana_sched.model.errors import DumpError, RestoreError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Entry, Images
from cedana_sched.snapshot.open_terminals import CURRENT_TERMINAL, NAMELESS, REMEDY

IMAGES = frozenset({"tty-info.img"})
"""The images that must be kept for `require_known_terminals`."""

_INFO = "tty-info.img"
_FILES = "files.img"
_CURRENT = os.makedev(5, 0)
_HOLDERS = frozenset({"/", "/dev", "/dev/tty"})
"""Mount points whose filesystem may have the device /dev/tty."""
_PTY, _EXTERNAL = "PTY", "EXT_TTY"
_SLAVES = range(136, 144)
"""Majors of pseudo-terminals (linux/major.h)."""
_MODES = ("c_iflag", "c_oflag", "c_cflag", "c_lflag")


def list_external_terminals(root_pid: int) -> tuple[str, ...]:
    """Return the values of CRIU's `--external` for files of /dev/tty; none if the process has ended."""
    with suppress(OSError):  # EINVAL: a zombie, of which CRIU's own error follows
        mountinfo = Path(f"/proc/{root_pid}/mountinfo").read_bytes().decode(errors="surrogateescape")
        return tuple(dict.fromkeys(f"tty[{_CURRENT:x}:{device:x}]" for device in _devices_of(mountinfo)))
    return ()


def _devices_of(mountinfo: str) -> Iterator[int]:
    """Yield the devices of the filesystems that may have /dev/tty (proc_pid_mountinfo(5))."""
    for line in filter(None, mountinfo.split("\n")):
        _, _, device, _, mount_point, *_ = line.split(" ")
        if mount_point in _HOLDERS:
            major, _, minor = device.partition(":")
            yield os.makedev(int(major), int(minor))


def require_known_terminals(toolchain: Toolchain, kept: Mapping[str, bytes | bytearray]) -> None:
    """Check the kept image.

    Raises:
        DumpError: a file of /dev/tty leads to a terminal that could not be found at the restore.
    """
    if _INFO not in kept:
        return
    entries = Images(toolchain, lambda name: bytes(kept[name])).read_entries(_INFO)
    for entry in _files_of_current_terminals(entries):
        if _find_terminal(entry, entries) is None:
            raise DumpError(f"a program has {CURRENT_TERMINAL} open, and {_describe_obstacle(entry)}", remedy=REMEDY)


def _describe_obstacle(current: Entry) -> str:
    if "termios" not in current:
        return "its terminal has hung up"
    if not current["sid"]:
        return "has left the session of its terminal, which is not certain"
    return f"{NAMELESS} (session {current['sid']})"


def reopen_by_name(images: Images, folder: Path) -> int:
    """Make the files of /dev/tty in staged images files of their terminals; return the number of files.

    Raises:
        RestoreError: such a terminal is not in the images.
        SnapshotError: an image cannot be decoded.
    """
    info = images.read_image(_INFO) or {"entries": []}
    current = _files_of_current_terminals(info["entries"])
    if not current:
        return 0
    terminals = {entry["id"]: _require_terminal(entry, info["entries"]) for entry in current}
    files = images.read_image(_FILES) or {"entries": []}
    opened = [entry["tty"] for entry in files["entries"] if "tty" in entry]
    names = {file["tty_info_id"]: file["regf_id"] for file in opened if "regf_id" in file}
    reopened = [file for file in opened if file["tty_info_id"] in terminals]
    if any(terminals[file["tty_info_id"]] not in names for file in reopened):
        raise RestoreError("a terminal in the snapshot has no name", remedy="start without the snapshot")
    for file in reopened:
        file["tty_info_id"] = terminals[file["tty_info_id"]]
        file["regf_id"] = names[file["tty_info_id"]]
    images.replace(folder / _FILES, files)
    info["entries"] = [entry for entry in info["entries"] if entry not in current]
    images.replace(folder / _INFO, info)
    return len(reopened)


def _files_of_current_terminals(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry["type"] == _EXTERNAL and entry["rdev"] == _CURRENT]


def _require_terminal(current: Entry, entries: Sequence[Entry]) -> int:
    found = _find_terminal(current, entries)
    if found is None:
        raise RestoreError(
            f"the terminal of session {current['sid']}, which a program has open as /dev/tty, is not in the snapshot",
            remedy="start without the snapshot",
        )
    return found


def _find_terminal(current: Entry, entries: Sequence[Entry]) -> int | None:
    """Return the id of the terminal to which a file of /dev/tty leads; None if it is not among the entries.

    The session is in the entry of either end. It is 0 if the file's process has left the session: then the terminal is
    certain only if there is but one.
    """
    terminals = [entry for entry in entries if entry["type"] == _PTY and {"pty", "termios"} <= entry.keys()]
    slaves = {entry["pty"]["index"]: entry for entry in terminals if os.major(entry["rdev"]) in _SLAVES}
    if "termios" not in current:
        return None
    if current["sid"]:
        indexes = {entry["pty"]["index"] for entry in terminals if entry["sid"] == current["sid"]}
    else:
        indexes = {entry["pty"]["index"] for entry in terminals}
        if any(_settings(entry) != _settings(current) for entry in slaves.values()):
            return None
    found = [slaves[index]["id"] for index in indexes if index in slaves]
    return found[0] if len(found) == len(indexes) == 1 else None


def _settings(terminal: Entry) -> tuple[object, ...]:
    """Return what is the same of each file of a terminal; the rest of its settings may be undefined bytes."""
    modes = terminal["termios"]
    return (*(modes[name] for name in _MODES), terminal.get("winsize"))
