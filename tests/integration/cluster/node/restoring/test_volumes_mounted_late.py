"""What is mounted over a folder that somebody watches tells him nothing: so the table of mounts is watched, too."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cedana_sched.cluster.node.restoring.file_waits import wait_for_path


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_a_file_in_a_volume_that_is_mounted_after_the_first_look_is_found(tmp_path: Path) -> None:
    """After a reboot the volume's folder is there before the kubelet mounts it anew."""
    volume = tmp_path / "volume"
    volume.mkdir()
    waiting = asyncio.create_task(wait_for_path(volume / "waiting", Path("/proc/self/mounts")))
    await asyncio.sleep(0)
    await _run("mount", "-t", "tmpfs", "late", str(volume))
    try:
        (volume / "waiting").touch()
        async with asyncio.timeout(60):
            await waiting
    finally:
        await _run("umount", str(volume))


async def test_link_that_leads_to_where_a_look_never_returns_is_not_followed(tmp_path: Path) -> None:
    """Who writes into the volume may lay one; a loop that follows it hangs with the server that it leads to."""
    (tmp_path / "waiting").symlink_to("nowhere")
    async with asyncio.timeout(60):
        await wait_for_path(tmp_path / "waiting", Path("/proc/self/mounts"))


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0
