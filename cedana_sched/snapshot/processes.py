"""Process trees as /proc shows them, for trees that have no cgroup of their own."""

from __future__ import annotations

from pathlib import Path


def process_tree(root_pid: int) -> list[int]:
    """PIDs of the process and its descendants, parents first; empty when it is gone."""
    found: list[int] = []
    waiting = [root_pid]
    while waiting:
        pid = waiting.pop(0)
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        found.append(pid)
        waiting.extend(children)
    return found
