"""What others mount on this machine while the tests run is not seen by them, nor by the jobs that they start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.leftovers import mounts_below


def test_a_mount_that_somebody_makes_meanwhile(tmp_path: Path) -> None:
    others = f"/proc/{os.getppid()}"  # whoever has started the tests sees the machine's mounts
    enter = ("nsenter", f"--mount={others}/ns/mnt", "--")
    subprocess.run([*enter, "mount", "-t", "tmpfs", "others", tmp_path], check=True)
    try:
        assert mounts_below(tmp_path, Path(f"{others}/mountinfo").read_text()) == [str(tmp_path)]
        assert mounts_below(tmp_path) == []
    finally:
        subprocess.run([*enter, "umount", tmp_path], check=True)
