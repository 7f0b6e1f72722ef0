"""Process trees from /proc, for trees that have no cgroup of their own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def process_tree(root_pid: int) -> list[int]:
    """Return the PIDs of the process and its descendants, parents first; empty if it is gone."""
    found: list[int] = []
    waiting = [root_pid]
    while waiting:
        pid = waiting.pop(0)
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        found.append(pid)
        for task in tasks:
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
                waiting.extend(int(child) for child in (task / "children").read_text().split())
    return found
