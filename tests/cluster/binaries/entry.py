"""One tool in the cache: a folder of programs and files, and the record that says what they should be.

bin/<tool>-<version>-<digest>/
    bin/            the programs
    files/          files of the tool's own module, under their paths there
    complete.json   written last: what was built with what, and a fingerprint of each file
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

_RECORD = "complete.json"
_PAGE = 4096
_PAGES = 16


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Write the record of a folder that is complete now; `facts` are kept in it for whoever looks."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    prints = {path.relative_to(folder).as_posix(): _fingerprint(path) for path in files}
    (folder / _RECORD).write_text(json.dumps({**facts, "files": prints}, indent=1) + "\n")


def is_intact(folder: Path) -> bool:
    """Whether the folder is whole, as far as a start can afford to look (20 ms for all tools).

    It notices a file that is missing, shorter, longer or of another size, a program that cannot be executed, any
    change in a file of at most 64 KiB, and in larger ones a change in one of 16 pages spread evenly from the first to
    the last: blocks lost in a power cut, another program under the name. It does not notice a few bytes changed in
    between.
    """
    try:
        record: dict[str, list[int | str]] = json.loads((folder / _RECORD).read_bytes())["files"]
        return all(
            _fingerprint(folder / name) == expected
            and (not name.startswith("bin/") or os.access(folder / name, os.X_OK))
            for name, expected in record.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no record, or one that is damaged itself
        return False


def _fingerprint(path: Path) -> list[int | str]:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _PAGE * _PAGES:
            return [size, hashlib.sha256(file.read()).hexdigest()]
        pages = hashlib.sha256()
        for number in range(_PAGES):
            pages.update(os.pread(file.fileno(), _PAGE, (size - _PAGE) * number // (_PAGES - 1)))
        return [size, pages.hexdigest()]
