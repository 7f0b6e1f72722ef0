"""Inputs that take a while to make are made once and kept: `cached_inputs`, called by the workloads' `write_inputs`."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from workloads.packages import cache_directory


def cached_inputs(name: str, ingredients: bytes, build: Callable[[Path], None]) -> Path:
    """Return a directory that `build` has filled; the same `ingredients` are built once on a machine.

    An interrupted build leaves nothing behind under the final name, and of two at the same time one wins.
    """
    digest = hashlib.sha256(ingredients).hexdigest()[:16]
    final = cache_directory() / "inputs" / f"{name}-{digest}"
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=final.parent) as folder:
        draft = Path(folder) / "draft"
        draft.mkdir()
        build(draft)
        try:
            draft.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    return final


def lay_inputs(source: Path, directory: Path) -> None:
    """Copy cached inputs into the directory of one run."""
    shutil.copytree(source, directory, dirs_exist_ok=True)
