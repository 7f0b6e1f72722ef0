"""The disk of the runs' records is full when a job ends: its end is recorded as it was, once there is room."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.local.runs.run_directory import RunDirectory
from tests.integration.local.runs import conftest

if TYPE_CHECKING:
    from cedana_sched.snapshot.criu_toolchain import Toolchain

PAGE = bytes(4096)


class FullDisk:
    """A file system of one MiB."""

    def __init__(self, point: Path) -> None:
        self.point = point
        self._ballast = point / "ballast"

    async def fill(self) -> None:
        """Fill it for good: a file that was replaced while somebody reads it gives its room back later."""
        async with asyncio.timeout(conftest.TIMEOUT_SECONDS):
            self._take_all()
            while self._used() > self._seen():
                await asyncio.sleep(0.02)  # the kernel announces no last close
                self._take_all()

    def _take_all(self) -> None:
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(PAGE)

    def _used(self) -> int:
        room = os.statvfs(self.point)
        return (room.f_blocks - room.f_bfree) * room.f_frsize

    def _seen(self) -> int:
        return sum(512 * path.lstat().st_blocks for path in self.point.rglob("*"))

    def make_room(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk(short_path: Path) -> Iterator[FullDisk]:
    point = short_path / "disk"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "records", point], check=True)
    yield FullDisk(point)
    subprocess.run(["umount", point], check=True)


@pytest.fixture
async def lab(disk: FullDisk, toolchain: Toolchain) -> AsyncIterator[conftest.Lab]:
    site = conftest.own_site()
    lab = conftest.Lab(disk.point / "state", toolchain, site)
    await lab.open()
    yield lab
    await lab.finish()


async def cleared(uid: str) -> None:
    """Wait until a run has no control groups any more, whoever removes them."""
    group = conftest.own_site().run_group(uid)
    async with asyncio.timeout(conftest.TIMEOUT_SECONDS):
        while any(path.exists() for path in group.unique_directories):  # noqa: ASYNC110 - the kernel announces no removal
            await asyncio.sleep(0.02)


async def test_a_job_that_ended_well_is_not_lost(lab: conftest.Lab, disk: FullDisk, short_path: Path) -> None:
    go = short_path / "go"
    job = lab.shell("ends", f"until [ -e {go} ]; do sleep 0.02; done; exit 3", stdout=short_path / "out")
    await lab.runtime.start_cold(job, None)
    await lab.beginning_of("ends")
    await disk.fill()
    go.touch()
    await cleared("ends")
    assert RunDirectory(lab.state / "runs" / "ends").read_exit() is None, "the disk was not full"
    disk.make_room()
    record = await lab.end_of("ends")
    assert (record.exit_code, record.lost) == (3, False)


async def test_a_run_that_was_lost_meanwhile_is_told_once_there_is_room(
    lab: conftest.Lab, disk: FullDisk, short_path: Path
) -> None:
    job = lab.shell("lost", "sleep 1000", stdout=short_path / "out")
    await lab.runtime.start_cold(job, None)
    await lab.beginning_of("lost")
    state = RunDirectory(lab.state / "runs" / "lost").read_state()
    assert state is not None
    await disk.fill()
    os.kill(state.shim.pid, signal.SIGKILL)
    await cleared("lost")
    disk.make_room()
    assert (await lab.end_of("lost")).lost
    await lab.runtime.kill("lost")
