"""What a killed CRIU leaves behind, and how it is undone."""

from __future__ import annotations

from pathlib import Path

from cedana_sched.snapshot.toolchain import Toolchain


def undo_killed_dump(toolchain: Toolchain, root_pid: int, log: Path) -> None:
    """Undo what a killed dump left."""
