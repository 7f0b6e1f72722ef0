"""A run is dumped, killed, and continued as another run, in new groups and under a new supervisor."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.model.errors import RestoreError
from cedana_sched.snapshot import freezer

if TYPE_CHECKING:
    from tests.integration.local.runs.conftest import Lab

pytestmark = pytest.mark.criu

COUNTING = """
import itertools, time
for number in itertools.count(1):
    print(number)
    time.sleep(0.005)
    if number == 400: raise SystemExit(9)
"""


async def test_three_generations_lose_and_repeat_nothing(lab: Lab) -> None:
    run = lab.python("count-0", COUNTING)
    await lab.runtime.start_cold(run, None)
    for generation in (1, 2, 3):
        await lab.printed(run.uid, len(lab.lines(run.uid)) + 20)
        run = await lab.next_generation(run, f"count-{generation}")
        assert (await lab.beginning_of(run.uid)).restored
    record = await lab.end_of(run.uid)
    assert record.exit_code == 9
    assert lab.out(run.uid).read_text().split() == [str(number) for number in range(1, 401)]
    assert [(await lab.end_of(f"count-{n}")).signal for n in range(3)] == ["SIGKILL"] * 3


async def test_continued_run_has_its_limits_and_its_groups(lab: Lab) -> None:
    run = lab.python("limits-0", COUNTING, memory_bytes=128 << 20, cpus=0.5)
    await lab.runtime.start_cold(run, None)
    await lab.printed(run.uid, 5)
    run = await lab.next_generation(run, "limits-1")
    running = await lab.runtime.find_running(run)
    assert running is not None
    assert running.containers[0].freezer.name == "limits-1"
    group = lab.runtime.cgroup_of(run.uid)
    assert group is not None
    pids = {pid for d in group.unique_directories for pid in (d / "cgroup.procs").read_text().split()}
    assert str(running.containers[0].root_pid) in pids
    texts = [
        path.read_text()
        for d in group.unique_directories
        for path in d.iterdir()
        if "limit_in_bytes" in path.name or path.name == "memory.max"
    ]
    assert str(128 << 20) in {text.strip() for text in texts}


async def test_user_and_shared_memory_are_continued(lab: Lab) -> None:
    script = "ipcmk -M 4096; while :; do id -u; ipcs -m | grep -c ^0x; sleep 0.02; done"
    run = lab.shell("user-0", script, user="nobody")
    await lab.runtime.start_cold(run, None)
    await lab.printed(run.uid, 5)
    run = await lab.next_generation(run, "user-1")
    lines = await lab.printed(run.uid, len(lab.lines(run.uid)) + 6)
    assert {line.strip() for line in lines[-4:]} == {"65534", "1"}


async def test_failed_restore_says_why_and_leaves_room_for_a_cold_start(lab: Lab) -> None:
    run = lab.python("broken-0", COUNTING)
    await lab.runtime.start_cold(run, None)
    await lab.printed(run.uid, 5)
    images, facts = await lab.dump(run)
    await lab.runtime.kill(run.uid)
    (images / "pagemap-1.img").write_bytes(b"not an image")
    successor = lab.again("broken-1", run)
    for _ in range(2):  # an order that is repeated is answered again
        with pytest.raises(RestoreError) as caught:
            await lab.runtime.restore_from_images(successor, images, facts)
        assert caught.value.evidence
    assert await lab.runtime.find_running(successor) is None
    await lab.runtime.start_cold(successor, "the snapshot is damaged")
    assert await lab.runtime.find_running(successor) is not None
    began = await lab.beginning_of(successor.uid)
    assert (began.restored, began.cold_because) == (False, "the snapshot is damaged")


@pytest.mark.parametrize("image", ["files.img", "pstree.img", "inventory.img"])
async def test_damaged_image_is_a_restore_that_failed(lab: Lab, image: str) -> None:
    run = lab.python("damaged-0", COUNTING)
    await lab.runtime.start_cold(run, None)
    await lab.printed(run.uid, 5)
    images, facts = await lab.dump(run)
    await lab.runtime.kill(run.uid)
    (images / image).write_bytes(b"not an image")
    with pytest.raises(RestoreError) as caught:
        await lab.runtime.restore_from_images(lab.again("damaged-1", run), images, facts)
    assert caught.value.remedy


async def test_older_snapshot_rewinds_the_output(lab: Lab) -> None:
    run = lab.python("rewind-0", COUNTING)
    await lab.runtime.start_cold(run, None)
    await lab.printed(run.uid, 20)
    images, facts = await lab.dump(run)
    running = await lab.runtime.find_running(run)
    assert running is not None
    freezer.thaw(running.containers[0].freezer)
    await lab.printed(run.uid, len(lab.lines(run.uid)) + 50)
    await lab.runtime.kill(run.uid)
    successor = lab.again("rewind-1", run)
    await lab.runtime.restore_from_images(successor, images, facts)
    await lab.end_of(successor.uid)
    assert lab.out(run.uid).read_text().split() == [str(number) for number in range(1, 401)]


async def test_mount_that_is_gone_is_named(lab: Lab, mounted: Path) -> None:
    run = lab.python("mount-0", COUNTING)
    await lab.runtime.start_cold(run, None)
    await lab.printed(run.uid, 5)
    images, facts = await lab.dump(run)
    await lab.runtime.kill(run.uid)
    unmount(mounted)
    with pytest.raises(RestoreError, match=str(mounted)):
        await lab.runtime.restore_from_images(lab.again("mount-1", run), images, facts)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A filesystem that a job sees besides the root."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True)
    yield tmp_path
    if tmp_path.is_mount():
        unmount(tmp_path)


def unmount(path: Path) -> None:
    subprocess.run(["umount", path], check=True)
