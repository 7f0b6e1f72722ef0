"""Compare the files of two runs bit for bit, and say where they part. Called by the workloads' checks."""

from __future__ import annotations

import hashlib
from pathlib import Path

EVIDENCE_BYTES = 2048
_BLOCK = 1 << 20


def tail(path: Path, size: int) -> str:
    """Return the last `size` bytes of a text file, empty when there is none yet."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - size))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def differences(directory: Path, reference: Path, names: tuple[str, ...]) -> list[str]:
    """Compare the files `names` of two directories: one sentence for each that is missing or differs."""
    found = (_difference(directory / name, reference / name) for name in names)
    return [sentence for sentence in found if sentence]


def _difference(path: Path, expected: Path) -> str:
    for file in (path, expected):
        if not file.is_file():
            return f"{file.name}: missing in {file.parent}"
    if path.stat().st_size != expected.stat().st_size:
        return f"{path.name}: {path.stat().st_size} bytes instead of {expected.stat().st_size}"
    offset = _first_difference(path, expected)
    return f"{path.name}: differs from byte {offset} on" if offset is not None else ""


def _first_difference(path: Path, expected: Path) -> int | None:
    position = 0
    with path.open("rb") as ours, expected.open("rb") as theirs:
        while block := ours.read(_BLOCK):
            other = theirs.read(_BLOCK)
            if block != other:
                return position + next(i for i, (a, b) in enumerate(zip(block, other, strict=True)) if a != b)
            position += len(block)
    return None
