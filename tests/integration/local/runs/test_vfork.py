"""A process that is caught between vfork and exec would make CRIU hang: it is never frozen there."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.freezer import FreezerError
from cedana_sched.snapshot.vfork import held_by_vfork

if TYPE_CHECKING:
    from tests.integration.local.runs.conftest import Lab

SLOW_TO_EXEC = """
#include <unistd.h>
int main(void)
{
    write(1, "up\\n", 3);
    if (vfork() == 0) {
        usleep(%d);
        _exit(0);
    }
    pause();
    return 0;
}
"""


def program(tmp_path: Path, microseconds: int) -> str:
    source = tmp_path / "program.c"
    source.write_text(SLOW_TO_EXEC % microseconds)
    subprocess.run(["cc", "-w", "-o", tmp_path / "program", source], check=True)
    return str(tmp_path / "program")


async def test_freeze_waits_for_the_exec(lab: Lab, tmp_path: Path) -> None:
    workload = lab.job("slow", program(tmp_path, 300_000))
    await lab.runtime.start_cold(workload, None)
    await lab.printed("slow", 1)
    running = await lab.runtime.find_running(workload)
    assert running is not None
    began = time.monotonic()
    await asyncio.to_thread(freezer.freeze, running.containers[0].freezer)
    assert time.monotonic() - began > 0.1
    assert freezer.is_frozen(running.containers[0].freezer)
    assert held_by_vfork(freezer.pids_in_cgroup(running.containers[0].freezer)) == []


async def test_freeze_gives_up_on_an_exec_that_never_comes(lab: Lab, tmp_path: Path) -> None:
    workload = lab.job("never", program(tmp_path, 60_000_000))
    await lab.runtime.start_cold(workload, None)
    await lab.printed("never", 1)
    running = await lab.runtime.find_running(workload)
    assert running is not None
    with pytest.raises(FreezerError) as caught:
        await asyncio.to_thread(freezer.freeze, running.containers[0].freezer, 0.2)
    assert "vfork" in caught.value.remedy
    assert not freezer.is_frozen(running.containers[0].freezer)


@pytest.mark.criu
async def test_shell_that_starts_programs_all_the_time_is_dumped(lab: Lab) -> None:
    run = lab.shell("busy-0", "while :; do /bin/true; echo tick; done")
    await lab.runtime.start_cold(run, None)
    for generation in range(1, 6):
        await lab.printed(run.uid, len(lab.lines(run.uid)) + 20)
        run = await lab.next_generation(run, f"busy-{generation}")
    await lab.printed(run.uid, len(lab.lines(run.uid)) + 20)
