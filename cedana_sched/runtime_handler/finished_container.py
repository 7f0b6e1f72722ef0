"""Replacement of a container that had succeeded before the snapshot: it runs a program that succeeds at once.

The program is a few instructions of machine code without libraries, so it runs in every image.
"""

from __future__ import annotations

import platform
import struct
from typing import Any

_PLACE = "/.cedana-finished"
_BASE = 0x400000
_HEADERS = 64 + 56
_MACHINES = {
    # ELF machine, instructions of exit_group(0)
    "x86_64": (62, bytes.fromhex("31ff b8e7000000 0f05".replace(" ", ""))),
    "aarch64": (183, struct.pack("<3I", 0xD2800000, 0xD2800BC8, 0xD4000001)),
}


def build_success_program(machine: str | None = None) -> bytes:
    """Return a static ELF executable of some 130 bytes that exits with status 0.

    Raises:
        KeyError: this architecture is not supported yet.
    """
    number, code = _MACHINES[machine or platform.machine()]
    size = _HEADERS + len(code)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, number, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code


def replace_process(spec: dict[str, Any], program_file: str) -> None:
    """Make a container's specification run only the program at `program_file`."""
    spec["process"]["args"] = [_PLACE]
    spec["mounts"] = [
        *spec.get("mounts", []),
        {"destination": _PLACE, "type": "bind", "source": program_file, "options": ["bind", "ro"]},
    ]
