"""The repository's tracked files, as the house's own checks read them."""

from __future__ import annotations

import subprocess
from pathlib import Path


def tracked_files(root: Path, *patterns: str) -> list[str]:
    """Return the names of tracked files that exist, of all or of those that match one of git's patterns."""
    command = ["git", "ls-files", "-z", "--", *patterns]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (root / name).is_file()]
