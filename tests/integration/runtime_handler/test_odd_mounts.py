"""What one pod calls a folder that it has mounted by subPath keeps no other pod's container from being undone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.runtime_handler.kernel import detach_mounts_below, mount_lines
from cedana_sched.runtime_handler.rootfs import find_overlay

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture(params=[b"a\rb", b"a\x0cb", b"\xff", "a\u2028b".encode(), b"\x1c \x85"])
def renamed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """A folder that the kubelet has mounted elsewhere, and its pod has renamed since."""
    (tmp_path / "data").mkdir()
    (tmp_path / "mounted").mkdir()
    subprocess.run(["mount", "--bind", tmp_path / "data", tmp_path / "mounted"], check=True)
    os.rename(tmp_path / "data", os.fsencode(tmp_path) + b"/" + request.param)  # noqa: PTH104  # no text
    yield
    subprocess.run(["umount", tmp_path / "mounted"], check=True)


@pytest.mark.usefixtures("renamed")
def test_mounts_of_others_may_have_any_name(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "left", work], check=True)
    assert find_overlay(mount_lines(), str(work)) is None
    detach_mounts_below(str(tmp_path / "none"))
    (work / "below").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "left", work / "below"], check=True)
    detach_mounts_below(str(work))
    assert not any(line.split(" ")[4] == str(work / "below") for line in mount_lines())
    subprocess.run(["umount", work], check=True)
