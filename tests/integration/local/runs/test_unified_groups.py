"""The same runs on cgroup v2, also where it is mounted beside v1 and has no controllers to give."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cedana_sched.local.runs.cgroup_site import CgroupSite
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.criu_toolchain import Toolchain
from tests.integration.local.runs.conftest import Lab, own_parent

ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
LOOP = "while :; do echo tick; sleep 0.02; done"


@pytest.fixture
async def unified(short_path: Path, toolchain: Toolchain) -> AsyncIterator[Lab]:
    root = next((root for root in ROOTS if (root / "cgroup.controllers").exists()), None)
    if root is None:
        pytest.skip("this machine has no cgroup v2")
    site = CgroupSite({"unified": root}, own_parent())
    lab = Lab(short_path / "state", toolchain, site)
    await lab.open()
    yield lab
    await lab.finish()
    assert not any(path.exists() for uid in lab.jobs for path in site.run_group(uid).unique_directories)
    site.remove_unused_groups()


@pytest.mark.criu
async def test_run_is_frozen_dumped_killed_and_continued(unified: Lab) -> None:
    run = unified.shell("v2-0", LOOP, memory_bytes=1 << 30, cpus=1.0)
    await unified.runtime.start_cold(run, None)
    for generation in (1, 2):
        await unified.printed(run.uid, len(unified.lines(run.uid)) + 5)
        run = await unified.next_generation(run, f"v2-{generation}")
    await unified.printed(run.uid, len(unified.lines(run.uid)) + 5)
    await unified.runtime.terminate(run.uid, grace_seconds=20)
    assert (await unified.end_of(run.uid)).signal == "SIGTERM"


async def test_missing_controllers_are_noted(unified: Lab) -> None:
    run = unified.shell("noted", "sleep 60", cpus=1.0)
    await unified.runtime.start_cold(run, None)
    group = unified.runtime.cgroup_of("noted")
    assert group is not None
    has_cpu = "cpu" in (group.freezer_directory / "cgroup.controllers").read_text().split()
    assert bool((await unified.beginning_of("noted")).notes) is not has_cpu
    assert unified.runtime.usage("noted") is not None


async def test_frozen_run_is_killed(unified: Lab) -> None:
    run = unified.shell("frozen", LOOP)
    await unified.runtime.start_cold(run, None)
    running = await unified.runtime.find_running(run)
    assert running is not None
    freezer.freeze(running.containers[0].freezer)
    await unified.runtime.kill("frozen")
    assert (await unified.end_of("frozen")).signal == "SIGKILL"
