"""A job whose files ran ahead of its snapshot is restored, starts cold or fails, as its policy requires."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cedana_sched.local.views import JobView
from tests.integration.local.engine.conftest import TIMEOUT_SECONDS, Engine, printed
from tests.integration.local.engine.processes import kill, supervisor_of

pytestmark = pytest.mark.criu

COUNTING = """
import sys, time
print("began", flush=True)
file = open(sys.argv[1], sys.argv[2]) if len(sys.argv) > 1 else sys.stdout
readers = [open(path) for path in sys.argv[3:]]
number = 0
while True:
    number += 1
    print(number, file=file, flush=True)
    time.sleep(0.02)
"""


async def lose_after_snapshot(engine: Engine, path: Path, job: JobView) -> None:
    """Save a job that counts into a file, let it run on, and kill all of it."""
    await grow(path)
    async with engine.client() as client:
        await client.checkpoint(job.uid, leave_running=True)
    saved = await engine.until(job.uid, lambda one: one.checkpoint is not None and one.checkpoint.phase == "Ready")
    await grow(path)
    kill(supervisor_of(engine, saved))


async def grow(path: Path) -> None:
    """Wait until the file has grown."""
    before = path.stat().st_size if path.exists() else 0
    await wait_until(lambda: path.exists() and path.stat().st_size > before)


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not is_so():  # noqa: ASYNC110  # written by another process
            await asyncio.sleep(0.01)


async def submit(engine: Engine, policy: str | None, *arguments: str, **fields: str) -> JobView:
    argv = (sys.executable, "-c", COUNTING, *arguments)
    job = await engine.submit(*argv, id="count", on_volume_change=policy, **fields)
    return await engine.until(job.uid, lambda one: one.phase == "Running")


def is_running_again(job: JobView) -> bool:
    return len(job.runs) > 1 and job.phase == "Running"


def assert_printed_once(job: JobView) -> None:
    """Each line, though the job was restored."""
    began, *lines = printed(job)[:-1]
    assert began == "began"
    assert lines == [str(number + 1) for number in range(len(lines))]


async def lose_and_restore_printing(engine: Engine, job: JobView) -> None:
    """Lose a job that prints, and require that it is restored, and prints on where it was saved."""
    await lose_after_snapshot(engine, Path(job.stdout), job)
    again = await engine.until(job.uid, is_running_again)
    assert again.runs[-1].restored_from is not None
    await grow(Path(job.stdout))
    assert_printed_once(again)


@pytest.mark.parametrize("mode", ["w", "a"])
async def test_it_starts_cold_under_cold_start(engine: Engine, mode: str) -> None:
    path = engine.home / "data"
    await lose_after_snapshot(engine, path, job := await submit(engine, "ColdStart", str(path), mode))
    again = await engine.until(job.uid, is_running_again)
    assert again.runs[-1].restored_from is None
    why = again.runs[-1].cold_because
    assert why is not None
    assert f"{path} has grown (" in why
    assert "bytes at the snapshot" in why
    assert "onVolumeChange: ColdStart" in why
    assert "onVolumeChange: Rewind truncates files that have grown" in why
    await wait_until(lambda: printed(again).count("began") == 2)


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("is_read", [False, True])
async def test_it_fails_under_fail_and_its_file_is_left(engine: Engine, mode: str, is_read: bool) -> None:
    """CRIU itself would refuse a file that is also open for reading, but then `onRestoreFailure` would decide."""
    path = engine.home / "data"
    readers = [str(path)] if is_read else []
    await lose_after_snapshot(engine, path, job := await submit(engine, "Fail", str(path), mode, *readers))
    failed = await engine.until_phase(job.uid, "Failed")
    assert f"{path} has grown (" in failed.why
    assert "onVolumeChange: Fail" in failed.why
    lines = path.read_text().splitlines()[:-1]  # the kill may have cut the last
    assert lines == [str(number + 1) for number in range(len(lines))]


async def test_it_is_restored_by_default_and_its_file_is_rewound(engine: Engine) -> None:
    path = engine.home / "data"
    await lose_after_snapshot(engine, path, job := await submit(engine, None, str(path), "w"))
    again = await engine.until(job.uid, is_running_again)
    assert again.runs[-1].restored_from is not None
    await grow(path)
    lines = path.read_text().splitlines()[:-1]
    assert lines == [str(number + 1) for number in range(len(lines))]
    assert printed(again).count("began") == 1


async def test_output_of_the_job_itself_is_rewound_whatever_the_policy_is(engine: Engine) -> None:
    await lose_and_restore_printing(engine, await submit(engine, "ColdStart"))


async def test_output_that_a_link_leads_to_is_rewound_too(engine: Engine) -> None:
    (engine.home / "folder").mkdir()
    (engine.home / "link").symlink_to("folder")
    await lose_and_restore_printing(engine, await submit(engine, "ColdStart", stdout=str(engine.home / "link/out")))


async def test_output_of_an_earlier_job_with_the_id_is_rewound_too(engine: Engine) -> None:
    first = await submit(engine, "ColdStart")
    async with engine.client() as client:
        await grow(Path(first.stdout))
        await client.checkpoint(first.uid, leave_running=True)
        await engine.until(first.uid, lambda one: one.checkpoint is not None and one.checkpoint.phase == "Ready")
        await grow(Path(first.stdout))
        await client.cancel(first.uid)
    await engine.until_phase(first.uid, "Cancelled")
    second = await submit(engine, "ColdStart")
    assert second.runs[-1].restored_from is not None
    await grow(Path(first.stdout))
    assert_printed_once(first)
